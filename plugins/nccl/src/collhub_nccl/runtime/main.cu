// Calls the library on test data, compares the result with its definition and with NCCL's own
// collective, times both: one JSON line.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "arguments.hpp"
#include "calls.hpp"
#include "elements.hpp"
#include "memory.hpp"
#include "together.hpp"
#include "values.hpp"

namespace collhub {

using Clock = std::chrono::steady_clock;

// What one rank found.
struct Findings {
  Difference definition, native;
  std::vector<double> begin_s, end_s, native_begin_s, native_end_s;
  std::vector<char> output;
  bool is_graph = false;
};

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

template <class T>
constexpr ncclDataType_t nccl_type();
template <>
constexpr ncclDataType_t nccl_type<Float16>() { return ncclFloat16; }
template <>
constexpr ncclDataType_t nccl_type<Bfloat16>() { return static_cast<ncclDataType_t>(kBfloat16); }
template <>
constexpr ncclDataType_t nccl_type<float>() { return ncclFloat32; }
template <>
constexpr ncclDataType_t nccl_type<double>() { return ncclFloat64; }
template <>
constexpr ncclDataType_t nccl_type<std::int32_t>() { return ncclInt32; }
template <>
constexpr ncclDataType_t nccl_type<std::int64_t>() { return ncclInt64; }

ncclRedOp_t nccl_op(const std::string& op) {
  if (op == "avg") return ncclAvg;
  if (op == "prod") return ncclProd;
  if (op == "min") return ncclMin;
  return op == "max" ? ncclMax : ncclSum;
}

// Memory for messages, registered with a communicator.
template <class T>
class DeviceMemory {
 public:
  DeviceMemory(std::size_t elements, ncclComm_t communicator) : communicator_(communicator) {
    const std::size_t bytes = std::max<std::size_t>(elements, 1) * sizeof(T);
    buffer_ = allocate(bytes, "allocation of test data");
    enroll(buffer_, bytes, communicator);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { give_back(buffer_, communicator_); }

  T* get() const { return static_cast<T*>(buffer_.memory); }

 private:
  ncclComm_t communicator_;
  DeviceBuffer buffer_;
};

// A sequence of launches as a CUDA graph, where the stream can be captured.
class Graph {
 public:
  template <class Launch>
  Graph(cudaStream_t stream, const Launch& launch) {
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return;
    launch();
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiateWithFlags(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (!executable_) return;
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }

  bool is_ready() const { return executable_ != nullptr; }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

template <class T, class Op>
class RankRun {
 public:
  RankRun(const Arguments& arguments, int rank, std::size_t block, ncclComm_t communicator, cudaStream_t stream, Barrier& barrier)
      : arguments_(arguments),
        layout_(kSchedule.memory[rank]),
        rank_(rank),
        block_(block),
        communicator_(communicator),
        stream_(stream),
        barrier_(barrier),
        memory_(as_size(layout_.total) * block, communicator),
        native_input_(as_size(layout_.size[kInput]) * block, communicator),
        native_output_(as_size(layout_.size[kOutput]) * block, communicator) {}

  Findings run() {
    Findings found;
    reset();
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    barrier_.wait();
    once();
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const std::vector<T> output = read(at(kOutput), as_size(layout_.size[kOutput]) * block_);
    compare(output, found);
    time(found);
    found.output.assign(reinterpret_cast<const char*>(output.data()), reinterpret_cast<const char*>(output.data() + output.size()));
    return found;
  }

 private:
  T* at(int buffer) const { return memory_.get() + as_size(layout_.begin[buffer]) * block_; }

  std::vector<T> read(const T* source, std::size_t count) const {
    std::vector<T> values(count);
    check(cudaMemcpyAsync(values.data(), source, count * sizeof(T), cudaMemcpyDeviceToHost, stream_), "copy to the host");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return values;
  }

  void put(T* target, const std::vector<T>& values) const {
    check(cudaMemcpyAsync(target, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_), "copy to the device");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  void reset() const {
    put(memory_.get(), std::vector<T>(as_size(layout_.total) * block_, background<T>(arguments_.op)));
    std::vector<T> input(as_size(layout_.size[kInput]) * block_, background<T>(arguments_.op));
    if (layout_.is_defined)
      for (std::size_t i = 0; i < input.size(); ++i) input[i] = value<T>(rank_, i, kSchedule.ranks, arguments_.op);
    if (layout_.is_defined) put(at(kInput), input);
    put(native_input_.get(), input);
  }

  void once() const {
    const std::size_t count = as_size(kSchedule.blocks / kSchedule.parts) * block_;
    const ncclResult_t result = COLLHUB_RUN(at(kInput), at(kOutput), count, nccl_type<T>(),
                                            nccl_op(arguments_.op), communicator_, stream_);
    if (result != ncclSuccess) throw std::runtime_error(COLLHUB_ERROR());
  }

  void native() const {
    const T* source = native_input_.get();
    T* target = native_output_.get();
    const ncclDataType_t type = nccl_type<T>();
    const ncclRedOp_t op = nccl_op(arguments_.op);
    const std::size_t input = as_size(layout_.size[kInput]) * block_, output = as_size(layout_.size[kOutput]) * block_;
    const auto call = [&] {
      switch (kSchedule.native) {
        case Native::kAllReduce: return ncclAllReduce(source, target, output, type, op, communicator_, stream_);
        case Native::kAllGather: return ncclAllGather(source, target, input, type, communicator_, stream_);
        case Native::kReduceScatter: return ncclReduceScatter(source, target, output, type, op, communicator_, stream_);
        case Native::kBroadcast: return ncclBroadcast(source, target, output, type, kSchedule.root, communicator_, stream_);
        case Native::kReduce: return ncclReduce(source, target, output, type, op, kSchedule.root, communicator_, stream_);
        case Native::kNone: break;
      }
      return ncclSuccess;
    };
    check(call(), "NCCL's own collective", communicator_);
  }

  void compare(const std::vector<T>& output, Findings& found) const {
    const double rounding = kSchedule.ranks * std::ldexp(1.0, 1 - Element<T>::kDigits);
    const bool has_exact_sums = is_exact<T>(kSchedule.ranks, arguments_.op);
    std::vector<char> is_stated;
    const std::vector<T> wanted = expected<T, Op>(kSchedule, rank_, block_, arguments_.op, is_stated);
    found.definition = Difference::of(output, wanted, is_stated, has_exact_sums ? 0 : rounding);
    if (kSchedule.native == Native::kNone) return;
    native();
    // NCCL multiplies by the reciprocal of the number of ranks before it adds.
    const bool is_bitwise = has_exact_sums && !(Element<T>::kIsFloating && arguments_.op == "avg");
    found.native = Difference::of(output, read(native_output_.get(), output.size()), is_stated, is_bitwise ? 0 : 2 * rounding);
  }

  void time(Findings& found) const {
    const std::unique_ptr<Graph> graph(arguments_.uses_graph ? new Graph(stream_, [this] { once(); }) : nullptr);
    found.is_graph = graph && graph->is_ready();
    time([&] { found.is_graph ? graph->launch(stream_) : once(); }, found.begin_s, found.end_s);
    if (kSchedule.native != Native::kNone) time([this] { native(); }, found.native_begin_s, found.native_end_s);
  }

  template <class Launch>
  void time(const Launch& launch, std::vector<double>& begin_s, std::vector<double>& end_s) const {
    for (int i = -arguments_.warmups; i < arguments_.repeats; ++i) {
      barrier_.wait();
      const double begin = now_s();
      launch();
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      if (i < 0) continue;
      begin_s.push_back(begin);
      end_s.push_back(now_s());
    }
  }

  const Arguments& arguments_;
  const Memory& layout_;
  int rank_;
  std::size_t block_;
  ncclComm_t communicator_;
  cudaStream_t stream_;
  Barrier& barrier_;
  DeviceMemory<T> memory_, native_input_, native_output_;
};

// One process writes the id of the communicator, the others wait until it is complete.
ncclUniqueId shared_id(const Arguments& arguments) {
  ncclUniqueId id;
  if (arguments.id_file.empty() || arguments.rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  if (arguments.id_file.empty()) return id;
  const std::string draft = arguments.id_file + ".part";
  if (arguments.rank == 0) {
    std::ofstream(draft, std::ios::binary).write(id.internal, sizeof id.internal);
    if (std::rename(draft.c_str(), arguments.id_file.c_str())) throw std::runtime_error("cannot write " + arguments.id_file);
    return id;
  }
  while (!std::ifstream(arguments.id_file, std::ios::binary).read(id.internal, sizeof id.internal))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return id;
}

template <class T, class Op>
Findings run_rank(const Arguments& arguments, int rank, int devices, const ncclUniqueId& id, std::size_t block, Barrier& barrier,
                  std::atomic<ncclComm_t>& watched) {
  check(cudaSetDevice(rank % devices), "cudaSetDevice");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // Also for communicators of lanes: what ranks on one GPU have no room for hangs.
  if (devices < kSchedule.ranks && arguments.id_file.empty()) config.minCTAs = 1;
  ncclComm_t communicator;
  check(ncclCommInitRankConfig(&communicator, kSchedule.ranks, id, rank, &config), "ncclCommInitRankConfig");
  watched = communicator;
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  const Findings found = RankRun<T, Op>(arguments, rank, block, communicator, stream, barrier).run();
  watched = nullptr;
  check(COLLHUB_RELEASE(communicator), "release");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  check(ncclCommDestroy(communicator), "ncclCommDestroy");
  return found;
}

// Seconds of the median repeat, each from the first rank's start to the last rank's end.
double median_s(const std::vector<Findings>& all, std::vector<double> Findings::*begin, std::vector<double> Findings::*end) {
  std::vector<double> times;
  for (std::size_t i = 0; i < (all[0].*begin).size(); ++i) {
    double first = (all[0].*begin)[i], last = (all[0].*end)[i];
    for (const Findings& found : all) {
      first = std::min(first, (found.*begin)[i]);
      last = std::max(last, (found.*end)[i]);
    }
    times.push_back(last - first);
  }
  std::sort(times.begin(), times.end());
  return times.empty() ? 0 : (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
}

std::string json(double value, bool is_known) {
  if (!is_known || !std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

const char* json(bool value, bool is_known) { return !is_known ? "null" : value ? "true" : "false"; }

bool ranks_agree(const std::vector<Findings>& all) {
  return std::all_of(all.begin(), all.end(), [&](const Findings& found) { return found.output == all[0].output; });
}

int report(const Arguments& arguments, const std::vector<Findings>& all, int first_rank, std::uint64_t bytes) {
  Difference definition, native;
  for (std::size_t i = 0; i < all.size(); ++i)
    for (auto [found, total, name] : {std::tuple(&all[i].definition, &definition, "the definition"),
                                      std::tuple(&all[i].native, &native, "NCCL's own collective")}) {
      if (found->wrong)
        std::fprintf(stderr, "rank %d: %lld elements of OUTPUT differ from %s, first %lld\n", first_rank + static_cast<int>(i),
                     static_cast<long long>(found->wrong), name, static_cast<long long>(found->first));
      total->wrong += found->wrong;
      if (!(found->largest <= total->largest)) total->largest = found->largest;
    }
  const bool has_native = kSchedule.native != Native::kNone, is_right = !definition.wrong && !native.wrong;
  const bool holds_same = kSchedule.native == Native::kAllReduce || kSchedule.native == Native::kAllGather ||
                          kSchedule.native == Native::kBroadcast;
  const double time_s = median_s(all, &Findings::begin_s, &Findings::end_s);
  const double native_s = median_s(all, &Findings::native_begin_s, &Findings::native_end_s);
  const double size = static_cast<double>(bytes);
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  std::printf(
      "{\"ok\": %s, \"collective\": \"%s\", \"num_ranks\": %d, \"first_rank\": %d, \"dtype\": \"%s\", \"reduce_op\": \"%s\", "
      "\"in_place\": %s, \"collective_bytes\": %llu, \"matches_definition\": %s, \"matches_nccl\": %s, \"max_abs_error\": %s, "
      "\"ranks_agree_bitwise\": %s, \"time_s\": %s, \"algorithm_bandwidth_bytes_per_s\": %s, \"bus_bandwidth_bytes_per_s\": %s, "
      "\"native_time_s\": %s, \"native_bus_bandwidth_bytes_per_s\": %s, \"is_graph\": %s, \"nccl_version\": %d}\n",
      json(is_right, true), kSchedule.collective, kSchedule.ranks, first_rank, arguments.dtype.c_str(), arguments.op.c_str(),
      json(kSchedule.is_in_place, true), static_cast<unsigned long long>(bytes), json(!definition.wrong, kSchedule.states_result),
      json(!native.wrong, has_native), json(definition.largest, kSchedule.states_result).c_str(),
      json(ranks_agree(all), holds_same && arguments.id_file.empty()), json(time_s, true).c_str(),
      json(size / time_s, true).c_str(), json(kSchedule.bus_factor * size / time_s, kSchedule.bus_factor > 0).c_str(),
      json(native_s, has_native).c_str(), json(kSchedule.bus_factor * size / native_s, has_native).c_str(),
      json(all[0].is_graph, true), version);
  return is_right ? 0 : 1;
}

template <class T, class Op>
int run_process(const Arguments& arguments) {
  const std::size_t block = block_elements(arguments, sizeof(T));
  const bool has_all = arguments.id_file.empty();
  const int first_rank = has_all ? 0 : arguments.rank, local = has_all ? kSchedule.ranks : 1;
  Watch watch(first_rank, local, arguments.timeout_s);
  std::vector<Findings> found(as_size(local));
  try {
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "no GPU can be used here (`make double` builds for the CPU): cudaGetDeviceCount");
    if (!devices) throw std::runtime_error("there is no GPU; `make double` builds for the CPU");
    if (devices < kSchedule.ranks && has_all) setenv("NCCL_MAX_CTAS", "2", 0);
    const ncclUniqueId id = shared_id(arguments);
    Barrier barrier(local);
    std::vector<std::thread> threads;
    for (int i = 0; i < local; ++i)
      threads.emplace_back([&, i] {
        try {
          found[as_size(i)] = run_rank<T, Op>(arguments, first_rank + i, devices, id, block, barrier, watch.communicator(i));
        } catch (const std::exception& error) {
          watch.fail(i, error.what());
        }
      });
    for (std::thread& thread : threads) thread.join();
  } catch (const std::exception& error) {
    watch.fail(0, error.what());
  }
  return report(arguments, found, first_rank, as_size(kSchedule.blocks) * block * sizeof(T));
}

template <class T>
int run_type(const Arguments& arguments) {
  if (arguments.op == "avg" && !kSchedule.is_reducing) usage_error("--op avg: this collective does not reduce over all ranks");
  if (arguments.op == "sum" || arguments.op == "avg") return run_process<T, Sum>(arguments);
  if (arguments.op == "prod") return run_process<T, Prod>(arguments);
  if (arguments.op == "min") return run_process<T, Min>(arguments);
  if (arguments.op == "max") return run_process<T, Max>(arguments);
  usage_error("--op " + arguments.op + ": not one of sum, prod, min, max, avg");
}

int run(const Arguments& arguments) {
  if (arguments.dtype == "float16") return run_type<Float16>(arguments);
  if (arguments.dtype == "bfloat16") return run_type<Bfloat16>(arguments);
  if (arguments.dtype == "float32") return run_type<float>(arguments);
  if (arguments.dtype == "float64") return run_type<double>(arguments);
  if (arguments.dtype == "int32") return run_type<std::int32_t>(arguments);
  if (arguments.dtype == "int64") return run_type<std::int64_t>(arguments);
  usage_error("--dtype " + arguments.dtype + ": not one of float16, bfloat16, float32, float64, int32, int64");
}

}  // namespace collhub

int main(int count, char** texts) {
  // Needed where several ranks share a GPU (NCCL 2.30), without effect elsewhere; read before the first call.
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // A kernel that is loaded late would wait for kernels of NCCL on its device, which wait for it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // One thread a rank enqueues all lanes in the same order: their kernels start in that order.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  return collhub::run(collhub::parse(count, texts));
}
