// Element types and reduction operators, the same on the host and on the device.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#ifdef __CUDACC__
#define COLLHUB_BOTH __host__ __device__
#else
#define COLLHUB_BOTH
#endif

namespace collhub {

struct Float16 {
  std::uint16_t bits;
};

struct Bfloat16 {
  std::uint16_t bits;
};

COLLHUB_BOTH inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

COLLHUB_BOTH inline float float_of(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Values are widened, computed and rounded to the nearest, ties to even. For one operation on Float16 or Bfloat16 that gives
// what arithmetic in the type itself gives: float has more than twice as many digits, and two.
COLLHUB_BOTH inline float widened(Bfloat16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }

COLLHUB_BOTH inline float widened(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | magnitude << 13);
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

COLLHUB_BOTH inline float widened(float value) { return value; }
COLLHUB_BOTH inline double widened(double value) { return value; }
COLLHUB_BOTH inline std::int64_t widened(std::uint8_t value) { return value; }
COLLHUB_BOTH inline std::int64_t widened(std::int32_t value) { return value; }
COLLHUB_BOTH inline std::int64_t widened(std::int64_t value) { return value; }

template <class T>
struct Rounded {
  template <class Wide>
  COLLHUB_BOTH static T of(Wide value) {
    return static_cast<T>(value);
  }
};

template <>
struct Rounded<Bfloat16> {
  COLLHUB_BOTH static Bfloat16 of(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
  }
};

template <>
struct Rounded<Float16> {
  COLLHUB_BOTH static Float16 of(float value) {
    const std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    return {static_cast<std::uint16_t>(sign | rounded_magnitude(magnitude))};
  }

 private:
  static constexpr std::uint32_t kTooLarge = 143u << 23, kSmallestNormal = 113u << 23, kHalf = 126u << 23;

  COLLHUB_BOTH static std::uint32_t rounded_magnitude(std::uint32_t bits) {
    if (bits >= kTooLarge) return bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    // The sum with 1/2 has the digits of a subnormal number at its end, rounded by the addition.
    if (bits < kSmallestNormal) return bits_of(float_of(bits) + float_of(kHalf)) - kHalf;
    return (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
  }
};

// `kDigits`: whole numbers up to 2 to this power are exact.
template <class T>
struct Element;

template <>
struct Element<Float16> {
  static constexpr const char* kName = "float16";
  static constexpr int kDigits = 11;
  static constexpr bool kIsFloating = true;
};

template <>
struct Element<Bfloat16> {
  static constexpr const char* kName = "bfloat16";
  static constexpr int kDigits = 8;
  static constexpr bool kIsFloating = true;
};

template <>
struct Element<float> {
  static constexpr const char* kName = "float32";
  static constexpr int kDigits = 24;
  static constexpr bool kIsFloating = true;
};

template <>
struct Element<double> {
  static constexpr const char* kName = "float64";
  static constexpr int kDigits = 53;
  static constexpr bool kIsFloating = true;
};

template <>
struct Element<std::int32_t> {
  static constexpr const char* kName = "int32";
  static constexpr int kDigits = 31;
  static constexpr bool kIsFloating = false;
};

template <>
struct Element<std::int64_t> {
  static constexpr const char* kName = "int64";
  static constexpr int kDigits = 63;
  static constexpr bool kIsFloating = false;
};

// Integers wrap around, as on the device.
struct Sum {
  template <class Wide>
  COLLHUB_BOTH static Wide of(Wide one, Wide other) {
    return one + other;
  }
  COLLHUB_BOTH static std::int64_t of(std::int64_t one, std::int64_t other) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) + static_cast<std::uint64_t>(other));
  }
};

struct Prod {
  template <class Wide>
  COLLHUB_BOTH static Wide of(Wide one, Wide other) {
    return one * other;
  }
  COLLHUB_BOTH static std::int64_t of(std::int64_t one, std::int64_t other) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) * static_cast<std::uint64_t>(other));
  }
};

struct Min {
  template <class Wide>
  COLLHUB_BOTH static Wide of(Wide one, Wide other) {
    return other < one ? other : one;
  }
};

struct Max {
  template <class Wide>
  COLLHUB_BOTH static Wide of(Wide one, Wide other) {
    return one < other ? other : one;
  }
};

template <class Op, class T>
COLLHUB_BOTH T reduced(T one, T other) {
  return Rounded<T>::of(Op::of(widened(one), widened(other)));
}

// An average is a sum that is divided at the end; integers are rounded towards zero.
template <class T>
COLLHUB_BOTH T divided(T total, int count) {
  const auto wide = widened(total);
  return Rounded<T>::of(wide / static_cast<decltype(widened(total))>(count));
}

}  // namespace collhub
