// What the ranks of one communicator of the test double share: memory of threads and processes.
//
// It is a file that every rank maps, and that is gone as soon as all have. For each pair of ranks it
// has one slot, in which one message at a time stands until it is received.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

// What a message brings from one process to another at a time.
constexpr std::size_t kPieceBytes = 1 << 14;

// A message from its sender to its receiver. Within a process the receiver reads the sender's
// memory; between processes the sender puts piece after piece here.
struct Slot {
  bool is_posted;
  bool is_taken;    // the receiver reads the source
  bool wants_pieces;
  bool is_done;
  int type;
  pid_t owner;
  const void* source;
  std::uint64_t count;
  std::uint64_t piece;  // bytes that stand in `bytes`
  char bytes[kPieceBytes];
};

struct SharedState {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int ranks;
  int attached;
  int arrived;
  long generation;
  bool has_failed;
};

class World {
 public:
  using Clock = std::chrono::steady_clock;

  // All ranks name the same id; the first one makes the file.
  static std::shared_ptr<World> joined(const std::string& id, int ranks) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<World>> known;
    const std::lock_guard<std::mutex> lock(mutex);
    // Threads of a process share one mapping.
    std::shared_ptr<World> world = known[id].lock();
    if (!world) known[id] = world = std::make_shared<World>(id, ranks);
    if (world->ranks() != ranks) return nullptr;
    world->attach();
    return world;
  }

  World(const std::string& id, int ranks) : path_(folder() + "/collhub_" + id) {
    const int flags = O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
    const int file = open(path_.c_str(), flags, 0600);
    if (file < 0) throw std::runtime_error(path_ + " cannot be made");
    // The first one fills it while the others wait for the lock.
    flock(file, LOCK_EX);
    const std::size_t header = page_rounded(sizeof(SharedState));
    size_ = header + sizeof(Slot) * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
    const bool is_first = lseek(file, 0, SEEK_END) == 0;
    if (is_first && ftruncate(file, static_cast<off_t>(size_))) throw std::runtime_error(path_);
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) throw std::runtime_error(path_ + " cannot be mapped");
    state_ = static_cast<SharedState*>(memory);
    slots_ = reinterpret_cast<Slot*>(static_cast<char*>(memory) + header);
    if (is_first) initialise(ranks);
    // By name: the mapping keeps the file open, and would keep the lock with it.
    flock(file, LOCK_UN);
    close(file);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { munmap(state_, size_); }

  int ranks() const { return state_->ranks; }
  SharedState& state() const { return *state_; }
  Slot& slot(int source, int target) const { return slots_[source * ranks() + target]; }

  // Forgets the file: nobody else may join.
  void unlink() const { ::unlink(path_.c_str()); }

  void notify() const { pthread_cond_broadcast(&state_->changed); }

  // Only under the lock; false when the time is over.
  bool wait_until(Clock::time_point deadline) const {
    const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch());
    timespec until;
    until.tv_sec = static_cast<time_t>(since.count() / 1000000000);
    until.tv_nsec = static_cast<long>(since.count() % 1000000000);
    return note_death(pthread_cond_timedwait(&state_->changed, &state_->mutex, &until)) != ETIMEDOUT;
  }

  // A lock that unlocks when it is left.
  class Lock {
   public:
    explicit Lock(const World& world) : world_(world) { lock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() { unlock(); }

    void lock() { world_.note_death(pthread_mutex_lock(&world_.state_->mutex)); }
    void unlock() { pthread_mutex_unlock(&world_.state_->mutex); }

   private:
    const World& world_;
  };

 private:
  static std::string folder() {
    const char* named = std::getenv("TMPDIR");
    return named && *named ? named : "/tmp";
  }

  static std::size_t page_rounded(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  void initialise(int ranks) {
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    // A process that ends while it holds the lock must not leave the others waiting.
    pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state_->mutex, &mutex);
    pthread_condattr_t condition;
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    // The clock of std::chrono::steady_clock.
    pthread_condattr_setclock(&condition, CLOCK_MONOTONIC);
    pthread_cond_init(&state_->changed, &condition);
    state_->ranks = ranks;
  }

  void attach() const {
    const Lock lock(*this);
    if (++state_->attached == state_->ranks) unlink();
  }

  int note_death(int result) const {
    if (result == EOWNERDEAD) {
      state_->has_failed = true;
      pthread_mutex_consistent(&state_->mutex);
    }
    return result;
  }

  std::string path_;
  std::size_t size_ = 0;
  SharedState* state_ = nullptr;
  Slot* slots_ = nullptr;
};
