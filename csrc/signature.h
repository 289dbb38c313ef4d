// The signature of a call: everything that a recipe or plan depends on.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <cstdint>
#include <cstring>

#include "device.h"

namespace webgpu {

using Tensors = c10::SmallVector<const at::Tensor*, 8>;

inline uint64_t hash_words(const uint64_t* words, size_t count) {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (size_t i = 0; i < count; i++) {
    __uint128_t product = static_cast<__uint128_t>(hash ^ words[i]) * 0xD6E8FEB86659FD93ull;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return hash;
}

// Float scalars and 0-dim CPU tensors stay out of the words (their values
// go to uniforms) unless the recipe asked to be specialised.
// A `split` one keeps sizes, strides and integers apart: calls that differ in nothing else are a family (family.h).
template <bool split>
struct BasicSignature {
  c10::SmallVector<uint64_t, 96> words;
  c10::SmallVector<int64_t, 32> numbers;  // of a split signature, in the order of the arguments
  Tensors tensors;
  c10::SmallVector<uint64_t, 8> values;
  c10::SmallVector<std::pair<const void*, int64_t>, 8> buffers;  // storage and byte offset of its first tensor

  void number(int64_t x) {
    if constexpr (split) {
      numbers.push_back(x);
    } else {
      words.push_back(x);
    }
  }

  void tensor(const at::Tensor& t) {
    tensors.push_back(&t);
    if (!t.defined()) return words.push_back(1);
    auto* impl = t.unsafeGetTensorImpl();
    uint64_t head = uint64_t(impl->dtype().toScalarType()) << 8 | uint64_t(impl->dim()) << 16;
    if (impl->device_type() != c10::DeviceType::PrivateUse1) {
      words.push_back(2 | head | uint64_t(impl->is_wrapped_number()) << 24 | uint64_t(impl->device_type()) << 32);
      if (impl->dim() == 0 && t.is_cpu()) {
        uint64_t value = 0;
        memcpy(&value, t.const_data_ptr(), std::min<size_t>(8, t.itemsize()));
        values.push_back(value);
      } else {
        for (auto size : impl->sizes()) words.push_back(size);
      }
      return;
    }
    const void* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    int64_t offset = impl->storage_offset() * int64_t(impl->itemsize());
    uint64_t alias = 0;
    while (alias < buffers.size() && buffers[alias].first != storage) alias++;
    words.push_back(3 | head | alias << 24 | uint64_t(offset & 15) << 40 | uint64_t(impl->is_wrapped_number()) << 48 |
                    uint64_t(impl->is_conj() || impl->is_neg()) << 49);
    if (alias == buffers.size()) {
      buffers.push_back({storage, offset});
    } else {
      words.push_back(offset - buffers[alias].second);  // whether two views of one buffer overlap matters
    }
    for (auto size : impl->sizes()) number(size);
    for (auto stride : impl->strides()) number(stride);
  }

  void value(const c10::IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return words.push_back(4);
    if (v.isInt()) {
      words.push_back(5);
      return number(v.toInt());
    }
    if (v.isDouble()) {
      double number = v.toDouble();
      uint64_t bits;
      memcpy(&bits, &number, 8);
      values.push_back(bits);
      return words.push_back(6);
    }
    if (v.isBool()) return words.push_back(7 | uint64_t(v.toBool()) << 8);
    if (v.isDevice()) return words.push_back(8 | uint64_t(v.toDevice().type()) << 8);
    if (v.isString()) return words.append({9, std::hash<std::string>()(v.toStringRef())});
    if (v.isIntList()) {
      auto list = v.toIntList();
      words.push_back(10 | uint64_t(list.size()) << 8);
      for (int64_t x : list) number(x);
      return;
    }
    if (v.isList()) {
      auto list = v.toListRef();
      words.push_back(11 | uint64_t(list.size()) << 8);
      for (auto& x : list) value(x);
      return;
    }
    if (v.isGenerator()) return words.push_back(12);
    if (v.isComplexDouble()) {
      raise_python("UnsupportedDTypeError", "webgpu has no complex numbers; split them into real and imaginary parts");
    }
    words.push_back(13);
  }
};
using Signature = BasicSignature<false>;

}  // namespace webgpu
