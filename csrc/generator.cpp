#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>

namespace webgpu {

namespace {
struct GeneratorImpl final : c10::GeneratorImpl {
  GeneratorImpl()
      : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, 0),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == 16, "a webgpu generator state has 16 bytes (seed, offset), got ", state.numel());
    auto* words = static_cast<const uint64_t*>(state.data());
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state(at::detail::empty_cpu({16}, at::ScalarType::Byte));
    auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
    words[0] = seed_;
    words[1] = offset_;
    return state.getIntrusivePtr();
  }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new GeneratorImpl();
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};
}  // namespace

at::Generator new_generator() { return at::Generator(c10::make_intrusive<GeneratorImpl>()); }

const at::Generator& default_generator() {
  static at::Generator generator = new_generator();
  return generator;
}

RandomState take_random(const at::Generator& generator, uint64_t blocks) {
  TORCH_CHECK(generator.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'webgpu' device type for generator but found '", generator.device().type(), "'");
  auto* impl = static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(impl->mutex_);
  RandomState state{impl->seed_, impl->offset_};
  impl->offset_ += blocks;
  return state;
}

}  // namespace webgpu
