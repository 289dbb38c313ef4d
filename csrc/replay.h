// Replays a recipe: makes its outputs and temporaries, places its operands, fills its uniform words, records its launches.
#pragma once
#include <chrono>
#include <string>

#include "recipe.h"
#include "signature.h"

namespace webgpu {

struct Call {
  std::string (*name)(const void*);  // of what is replayed, for errors
  const void* named;
  at::ArrayRef<c10::IValue> args;
  const Tensors& tensors;
  c10::SmallVector<at::Tensor, 4> outputs;
  c10::SmallVector<Block*, 4> temps;

  // The block and the storage offset in bytes.
  std::pair<const Block*, int64_t> locate(int32_t ref) const;
};

extern bool profiling;
extern RecipeStats stats;

struct Stopwatch {
  std::chrono::steady_clock::time_point last;
  Stopwatch() {
    if (C10_UNLIKELY(profiling)) last = std::chrono::steady_clock::now();
  }
  void lap(uint64_t& sum) {
    if (C10_LIKELY(!profiling)) return;
    auto now = std::chrono::steady_clock::now();
    sum += std::chrono::duration_cast<std::chrono::nanoseconds>(now - last).count();
    last = now;
  }
};

// Needs the device lock.
void replay(Call& call, const Recipe& recipe, Stopwatch& watch);

}  // namespace webgpu
