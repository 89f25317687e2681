// Test data: small whole numbers whose reduction over all ranks is exact in any order, so that results are compared by bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "elements.hpp"
#include "schedule.hpp"

namespace collhub {

constexpr std::int64_t kLargestValue = 250;
constexpr int kDoublingRanks = 8;

// Whole numbers up to this one are exact, and so are sums of so many ranks with values of 0 and 1.
template <class T>
constexpr std::int64_t largest_exact() {
  return std::int64_t{1} << std::min(Element<T>::kDigits, 62);
}

template <class T>
bool is_exact(int ranks, const std::string& op) {
  return (op != "sum" && op != "avg") || ranks < largest_exact<T>();
}

// Element `index` of the INPUT of a rank. Products are powers of two with signs.
template <class T>
T value(int rank, std::size_t index, int ranks, const std::string& op) {
  const std::uint64_t mixed = index * 2654435761u + static_cast<std::uint64_t>(rank) * 40503u;
  if (op == "prod") {
    const std::int64_t size = rank < kDoublingRanks ? 1 + static_cast<std::int64_t>(mixed % 251 & 1) : 1;
    return Rounded<T>::of(static_cast<decltype(widened(T()))>(mixed % 239 & 1 ? -size : size));
  }
  const std::int64_t largest = std::max<std::int64_t>(1, std::min(kLargestValue, largest_exact<T>() / ranks));
  return Rounded<T>::of(static_cast<decltype(widened(T()))>(mixed % static_cast<std::uint64_t>(largest + 1)));
}

// What memory holds before: nothing that a right result has, and every operator carries it on.
template <class T>
T background(const std::string& op) {
  using Wide = decltype(widened(T()));
  using Limits = std::numeric_limits<Wide>;
  if constexpr (Element<T>::kIsFloating) {
    const Wide extreme = op == "min" ? -Limits::infinity() : Limits::infinity();
    return Rounded<T>::of(op == "min" || op == "max" ? extreme : Limits::quiet_NaN());
  } else {
    if (op == "min") return std::numeric_limits<T>::min();
    return op == "max" ? std::numeric_limits<T>::max() : T{0x5A5A5A5B};
  }
}

// OUTPUT of a rank by the definition of the collective; `is_stated`: which elements it promises.
template <class T, class Op>
std::vector<T> expected(const Schedule& schedule, int rank, std::size_t block, const std::string& op, std::vector<char>& is_stated) {
  const std::size_t size = as_size(schedule.memory[rank].size[kOutput]) * block;
  std::vector<T> found(size);
  is_stated.assign(size, 0);
  const auto add = [&](std::size_t place, int source, std::size_t index) {
    const T next = value<T>(source, index, schedule.ranks, op);
    found[place] = is_stated[place] ? reduced<Op>(found[place], next) : next;
    is_stated[place] = 1;
  };
  for (std::int64_t p = schedule.promise_begin[rank]; p < schedule.promise_begin[rank + 1]; ++p) {
    const Promise& promise = schedule.promises[p];
    const int first = promise.source < 0 ? 0 : promise.source, last = promise.source < 0 ? schedule.ranks - 1 : first;
    for (std::size_t i = 0; i < as_size(promise.count) * block; ++i)
      for (int source = first; source <= last; ++source)
        add(as_size(promise.offset) * block + i, source, as_size(promise.source_offset) * block + i);
  }
  if (op == "avg")
    for (T& total : found) total = divided(total, schedule.ranks);
  return found;
}

// How far two results are apart, and how many elements are further apart than `relative` of their size.
struct Difference {
  std::int64_t wrong = 0;
  std::int64_t first = -1;
  double largest = 0;

  template <class T>
  static Difference of(const std::vector<T>& one, const std::vector<T>& other, const std::vector<char>& counts, double relative) {
    Difference found;
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (!counts[i] || std::memcmp(&one[i], &other[i], sizeof(T)) == 0) continue;
      const double gap = std::fabs(static_cast<double>(widened(one[i])) - static_cast<double>(widened(other[i])));
      if (!(gap <= found.largest)) found.largest = gap;
      if (gap <= relative * std::fabs(static_cast<double>(widened(other[i])))) continue;
      if (!found.wrong++) found.first = static_cast<std::int64_t>(i);
    }
    return found;
  }
};

}  // namespace collhub
