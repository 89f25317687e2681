// Command line of the emitted program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "schedule.hpp"

namespace collhub {

struct Arguments {
  std::string dtype = "float32";
  std::string op = kSchedule.reduce_op;
  std::uint64_t bytes = 0;  // of the full buffer; 0: about 1 MiB
  int repeats = 20;
  int warmups = 5;
  double timeout_s = 60;
  int rank = -1;  // -1: all ranks in this process
  std::string id_file;
  bool uses_graph = false;
};

constexpr const char* kUsage =
    "usage: %s [--dtype float16|bfloat16|float32|float64|int32|int64] [--op sum|prod|min|max|avg] [--size BYTES]\n"
    "          [--repeats N] [--warmups N] [--timeout SECONDS] [--graph] [--id-file FILE [--rank R]]\n"
    "All ranks are threads of one process. With --id-file every process is one rank (its number from --rank, else from RANK,\n"
    "OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID); FILE must be new, and visible to all. --graph: timed as a CUDA graph.\n";

[[noreturn]] inline void usage_error(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

inline double number(const std::string& name, const char* text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end || !(value >= least)) usage_error(name + ": '" + text + "' is not a number from " + std::to_string(least));
  return value;
}

inline int rank_of_environment() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* text = std::getenv(name)) return static_cast<int>(number(name, text, 0));
  usage_error("--id-file: the rank of this process is not known; name it by --rank");
}

inline void take(Arguments& arguments, const std::string& name, const char* value) {
  if (name == "--dtype") arguments.dtype = value;
  else if (name == "--op") arguments.op = value;
  else if (name == "--size") arguments.bytes = static_cast<std::uint64_t>(number(name, value, 1));
  else if (name == "--repeats") arguments.repeats = static_cast<int>(number(name, value, 1));
  else if (name == "--warmups") arguments.warmups = static_cast<int>(number(name, value, 0));
  else if (name == "--timeout") arguments.timeout_s = number(name, value, 0);
  else if (name == "--rank") arguments.rank = static_cast<int>(number(name, value, 0));
  else if (name == "--id-file") arguments.id_file = value;
  else usage_error(name + " is not an option; see --help");
}

inline Arguments parse(int count, char** texts) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string name = texts[i];
    if (name == "--help" || name == "-h") {
      std::printf(kUsage, texts[0]);
      std::exit(0);
    }
    if (name == "--graph") {
      arguments.uses_graph = true;
      continue;
    }
    if (i + 1 == count) usage_error(name + " needs a value; see --help");
    take(arguments, name, texts[++i]);
  }
  if (arguments.id_file.empty() && arguments.rank >= 0) usage_error("--rank needs --id-file");
  if (!arguments.id_file.empty() && arguments.rank < 0) arguments.rank = rank_of_environment();
  if (arguments.rank >= kSchedule.ranks)
    usage_error("rank " + std::to_string(arguments.rank) + ": the schedule has " + std::to_string(kSchedule.ranks) + " ranks");
  return arguments;
}

// Elements of a block, so that the full buffer has the wanted bytes, rounded down to whole blocks.
inline std::size_t block_elements(const Arguments& arguments, std::size_t element_bytes) {
  const std::uint64_t step = as_size(kSchedule.blocks) * element_bytes;
  if (!arguments.bytes) return ((1u << 20) + step - 1) / step;
  const std::uint64_t block = std::max<std::uint64_t>(arguments.bytes / step, 1);
  if (block * step != arguments.bytes)
    std::fprintf(stderr, "--size %llu: %llu bytes are taken, whole elements in each of %lld blocks\n",
                 static_cast<unsigned long long>(arguments.bytes),
                 static_cast<unsigned long long>(block * step), static_cast<long long>(kSchedule.blocks));
  return block;
}

}  // namespace collhub
