#include "replay.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>
#include <cstring>
#include <sstream>

#include "allocator.h"
#include "device.h"
#include "generator.h"
#include "queue.h"

namespace webgpu {

bool profiling;
RecipeStats stats;

namespace {
Block* block_of(const at::Tensor& t) {
  return static_cast<Block*>(t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->mutable_data());
}
}  // namespace

std::pair<const Block*, int64_t> Call::locate(int32_t ref) const {
  if (ref == ref_error) return {&error_block(), 0};
  if (ref >= ref_temp) return {temps[ref - ref_temp], 0};
  const at::Tensor& t = ref >= ref_output ? outputs[ref - ref_output] : *tensors[ref];
  return {block_of(t), t.storage_offset() * int64_t(t.itemsize())};
}

namespace {

template <typename T>
T scalar_of(const Call& call, const Patch& patch) {
  if (!patch.tensor) return call.args[patch.index].toScalar().to<T>();
  const at::Tensor& t = *call.tensors[patch.index];
  c10::Scalar value;
  switch (t.scalar_type()) {
    case at::ScalarType::Double: value = *t.const_data_ptr<double>(); break;
    case at::ScalarType::Float: value = *t.const_data_ptr<float>(); break;
    case at::ScalarType::Half: value = float(*t.const_data_ptr<c10::Half>()); break;
    case at::ScalarType::BFloat16: value = float(*t.const_data_ptr<c10::BFloat16>()); break;
    case at::ScalarType::Long: value = *t.const_data_ptr<int64_t>(); break;
    case at::ScalarType::Int: value = *t.const_data_ptr<int32_t>(); break;
    case at::ScalarType::Short: value = *t.const_data_ptr<int16_t>(); break;
    case at::ScalarType::Char: value = *t.const_data_ptr<int8_t>(); break;
    case at::ScalarType::Byte: value = *t.const_data_ptr<uint8_t>(); break;
    case at::ScalarType::Bool: value = *t.const_data_ptr<bool>(); break;
    default:
      raise_python("UnsupportedDTypeError",
                   std::string("webgpu cannot use a CPU scalar of dtype ") + c10::toString(t.scalar_type()));
  }
  return value.to<T>();
}

float to_f32(double value) { return static_cast<float>(value); }

int64_t to_i64(const Call& call, const Patch& patch) {
  // A float in an integer slot (a comparison with inf, say) is decided in the lowering; here only plain integers arrive.
  return scalar_of<int64_t>(call, patch);
}

void apply_patch(const Call& call, const Patch& patch, uint32_t* words) {
  uint32_t* at = words + patch.word;
  switch (patch.kind) {
    case PatchKind::f32: {
      float value = to_f32(scalar_of<double>(call, patch));
      memcpy(at, &value, 4);
      break;
    }
    case PatchKind::i32: {
      auto value = static_cast<uint32_t>(to_i64(call, patch));
      memcpy(at, &value, 4);
      break;
    }
    case PatchKind::i64: {
      int64_t value = to_i64(call, patch);
      memcpy(at, &value, 8);
      break;
    }
    case PatchKind::random: {
      bool given = patch.index >= 0 && call.args[patch.index].isGenerator();
      RandomState state = take_random(given ? call.args[patch.index].toGenerator() : default_generator(), patch.count);
      memcpy(at, &state.seed, 8);
      memcpy(at + 2, &state.offset, 8);
      break;
    }
  }
}

std::string describe(const Call& call) {
  std::ostringstream text;
  text << call.name(call.named);
  size_t shown = 0;
  for (auto* t : call.tensors) {
    if (shown++ == 8) {
      text << " ...";
      break;
    }
    if (t->defined()) text << ' ' << c10::toString(t->scalar_type()) << t->sizes();
  }
  return text.str();
}

// Places the operands in their bindings: whole buffers where they fit, else the 256-byte aligned range that is touched.
void place_operands(const Call& call, const Step& step, Window* windows, uint32_t* words) {
  struct Range {
    uint64_t low, high;
  };
  Range ranges[most_bindings];
  uint32_t seen = 0;
  for (size_t i = 0; i < step.operands.size(); i++) {
    auto& operand = step.operands[i];
    auto [block, start] = call.locate(operand.ref);
    if (C10_UNLIKELY(!block)) raise_python("InternalError", describe(call) + ": an operand has no storage");
    block->require();
    uint64_t low = start + operand.delta * operand.itemsize, high = low + operand.extent * operand.itemsize;
    if (!(seen >> operand.slot & 1)) {
      seen |= 1u << operand.slot;
      windows[operand.slot] = {block, 0, block->size};
      ranges[operand.slot] = {low, high};
    } else {
      ranges[operand.slot] = {std::min(ranges[operand.slot].low, low), std::max(ranges[operand.slot].high, high)};
    }
    words[i] = static_cast<uint32_t>(low >> __builtin_ctz(operand.itemsize));
  }
  for (uint32_t slot = 0; slot < step.pipeline.bindings; slot++) {
    Window& window = windows[slot];
    if (C10_LIKELY(window.block->size <= device.limits.max_binding)) continue;
    window.offset = ranges[slot].low & ~uint64_t(255);
    window.size = std::min(((ranges[slot].high + 255) & ~uint64_t(255)), window.block->size) - window.offset;
    if (window.size > device.limits.max_binding) {
      raise_python("LimitError", describe(call) + ": one launch touches " + std::to_string(window.size) +
                                     " bytes of a buffer but a binding may cover " +
                                     std::to_string(device.limits.max_binding) + "; split the tensor");
    }
    for (size_t i = 0; i < step.operands.size(); i++) {
      auto& operand = step.operands[i];
      if (operand.slot != slot) continue;
      uint64_t start = call.locate(operand.ref).second + operand.delta * operand.itemsize;
      words[i] = static_cast<uint32_t>((start - window.offset) / operand.itemsize);
    }
  }
}

void launch(const Call& call, const Step& step, Stopwatch& watch) {
  Window windows[most_bindings];
  uint32_t words[4 * uniform_slot / 4];
  memcpy(words, step.words.data(), step.words.size() * 4);
  place_operands(call, step, windows, words);
  for (auto& patch : step.patches) apply_patch(call, patch, words);
  record_dispatch(step.pipeline, windows, words, step.words.size(), step.groups);
  watch.lap(stats.record_ns);
}

void make_outputs(Call& call, const Recipe& recipe) {
  static constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  for (auto& output : recipe.outputs) {
    if (C10_UNLIKELY(output.view)) {
      const at::Tensor& base =
          output.alias >= ref_output ? call.outputs[output.alias - ref_output] : *call.tensors[output.alias];
      call.outputs.push_back(at::as_strided(base, output.sizes, output.strides, base.storage_offset() + output.offset));
    } else if (output.alias < 0) {
      call.outputs.emplace_back(
          at::detail::empty_strided_generic(output.sizes, output.strides, result_allocator(), keys, output.dtype));
    } else {
      call.outputs.push_back(*call.tensors[output.alias]);
      if (C10_UNLIKELY(call.outputs.back().sizes() != c10::IntArrayRef(output.sizes))) {
        at::native::resize_output(call.outputs.back(), output.sizes);
      }
    }
  }
}

}  // namespace

void replay(Call& call, const Recipe& recipe, Stopwatch& watch) {
  make_outputs(call, recipe);
  for (uint64_t bytes : recipe.temps) call.temps.push_back(allocate_block(bytes, true));
  watch.lap(stats.output_ns);
  if (recipe.may_fail) expect_device_errors();
  for (auto& step : recipe.steps) launch(call, step, watch);
  for (Block* temp : call.temps) free_block(temp);  // the queue orders its next use after this one
  stats.launches++;
  if (C10_UNLIKELY(has_errors()))
    raise_errors(describe(call) + ", or a launch before it (TORCH_WEBGPU_DEBUG=1 finds which)");
  if (C10_UNLIKELY(device.debug)) {
    synchronize();
    raise_errors(describe(call));
  }
}

}  // namespace webgpu
