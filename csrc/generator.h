// The device's random generator: a seed and a counter offset for the Philox 4x32-10 kernels.
#pragma once
#include <ATen/core/Generator.h>

struct _object;  // PyObject

namespace webgpu {

const at::Generator& default_generator();
at::Generator new_generator();
// As a torch.Generator (GIL held).
::_object* wrap_generator(const at::Generator&);

struct RandomState {
  uint64_t seed, offset;
};
// Takes `blocks` counters (four 32-bit words each) from the generator.
RandomState take_random(const at::Generator& generator, uint64_t blocks);

}  // namespace webgpu
