#include "recipe.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/util/SmallVector.h>
#include <chrono>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "allocator.h"
#include "device.h"
#include "generator.h"
#include "queue.h"

namespace webgpu {

namespace {
using Tensors = c10::SmallVector<const at::Tensor*, 8>;

PyObject* miss_handler;
RecipeStats stats;
std::unordered_map<std::string, uint64_t> fallen_back;  // by op
bool profiling;

uint64_t mix(uint64_t hash, uint64_t word) {
  __uint128_t product = static_cast<__uint128_t>(hash ^ word) * 0xD6E8FEB86659FD93ull;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_words(const uint64_t* words, size_t count) {
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (size_t i = 0; i < count; i++) hash = mix(hash, words[i]);
  return hash;
}

Block* block_of(const at::Tensor& t) {
  return static_cast<Block*>(t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->mutable_data());
}

// ---------------------------------------------------------------------------------------------------- signature

// The signature of a call: everything a recipe depends on. Float scalars and 0-dim CPU tensors stay out of it (their values
// go to uniforms) unless the recipe asked to be specialised.
struct Signature {
  c10::SmallVector<uint64_t, 96> words;
  Tensors tensors;
  c10::SmallVector<uint64_t, 8> values;
  c10::SmallVector<std::pair<const void*, int64_t>, 8> buffers;  // storage and byte offset of its first tensor

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
    for (auto size : impl->sizes()) words.push_back(size);
    for (auto stride : impl->strides()) words.push_back(stride);
  }

  void value(const c10::IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return words.push_back(4);
    if (v.isInt()) return words.append({5, static_cast<uint64_t>(v.toInt())});
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
      for (int64_t x : list) words.push_back(x);
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

// ---------------------------------------------------------------------------------------------------- recipe cache

struct Entry {
  std::vector<uint64_t> words;
  Recipe recipe;
};

// Entries are shared: one may be dropped by another thread while it is being replayed.
using EntryPtr = std::shared_ptr<Entry>;
std::unordered_map<uint64_t, std::vector<EntryPtr>> cache;
constexpr uint64_t most_recipes = 32768;

EntryPtr find_entry(uint64_t hash, c10::ArrayRef<uint64_t> words) {
  auto found = cache.find(hash);
  if (found == cache.end()) return nullptr;
  for (auto& entry : found->second) {
    if (entry->words.size() == words.size() && !memcmp(entry->words.data(), words.data(), words.size() * 8)) return entry;
  }
  return nullptr;
}

void store_entry(uint64_t hash, c10::ArrayRef<uint64_t> words, EntryPtr entry) {
  if (stats.recipes >= most_recipes) {
    cache.clear();
    stats.recipes = 0;
  }
  entry->words.assign(words.begin(), words.end());
  cache[hash].push_back(std::move(entry));
  stats.recipes++;
}

// ---------------------------------------------------------------------------------------------------- replay

struct Call {
  const c10::OperatorHandle& op;
  at::ArrayRef<c10::IValue> args;
  const Tensors& tensors;
  c10::SmallVector<at::Tensor, 4> outputs;
  c10::SmallVector<Block*, 4> temps;

  std::pair<const Block*, int64_t> locate(int32_t ref) const {  // the block and the storage offset in bytes
    if (ref == ref_error) return {&error_block(), 0};
    if (ref >= ref_temp) return {temps[ref - ref_temp], 0};
    const at::Tensor& t = ref >= ref_output ? outputs[ref - ref_output] : *tensors[ref];
    return {block_of(t), t.storage_offset() * int64_t(t.itemsize())};
  }
};

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
  text << call.op.schema().operator_name();
  for (auto* t : call.tensors) {
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
    if (output.alias < 0) {
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

// Asks Python for the recipe. Runs without the device lock, takes the GIL.
EntryPtr ask_python(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, bool& redispatch) {
  PyGILState_STATE gil = PyGILState_Ensure();
  auto& name = op.operator_name();
  PyObject* described = describe_arguments(args);
  PyObject* result =
      described ? PyObject_CallFunction(miss_handler, "ssN", name.name.c_str(), name.overload_name.c_str(), described)
                : nullptr;
  if (!result) rethrow_python(gil);
  auto entry = std::make_shared<Entry>();
  redispatch = PyUnicode_Check(result) && PyUnicode_CompareWithASCIIString(result, "redispatch") == 0;
  if (PyUnicode_Check(result)) {
    entry->recipe.kind = Recipe::Kind::redirect;
    entry->recipe.redirect = PyUnicode_AsUTF8(result);
  } else {
    entry->recipe = parse_recipe(result);
  }
  Py_DECREF(result);
  if (PyErr_Occurred()) rethrow_python(gil);
  PyGILState_Release(gil);
  return entry;
}
}  // namespace

void boxed_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Stopwatch watch;
  const size_t arity = op.schema().arguments().size();
  auto args = torch::jit::last(*stack, arity);
  Signature signature;
  signature.words.push_back(reinterpret_cast<uint64_t>(&op.schema()));
  for (auto& arg : args) signature.value(arg);
  uint64_t hash = hash_words(signature.words.data(), signature.words.size());

  Lock lock(device_mutex());
  EntryPtr entry = find_entry(hash, signature.words);
  bool specialised = entry && entry->recipe.kind == Recipe::Kind::specialise;
  uint64_t general_hash = hash;
  size_t general_count = signature.words.size();
  if (specialised) {
    signature.words.append(signature.values.begin(), signature.values.end());
    hash = hash_words(signature.words.data(), signature.words.size());
    entry = find_entry(hash, signature.words);
  }
  watch.lap(stats.key_ns);
  if (!entry) {
    lock.unlock();
    ensure_device();
    bool redispatch = false;
    entry = ask_python(op, args, redispatch);
    if (redispatch) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
    lock.lock();
    stats.misses++;
    if (entry->recipe.kind == Recipe::Kind::specialise && !specialised) {
      auto marker = std::make_shared<Entry>();
      marker->recipe.kind = Recipe::Kind::specialise;
      store_entry(general_hash, c10::ArrayRef<uint64_t>(signature.words.data(), general_count), marker);
      signature.words.append(signature.values.begin(), signature.values.end());
      hash = hash_words(signature.words.data(), signature.words.size());
    }
    if (entry->recipe.kind == Recipe::Kind::specialise) entry->recipe.kind = Recipe::Kind::launch;
    store_entry(hash, signature.words, entry);
    watch.lap(stats.miss_ns);
  }
  if (entry->recipe.kind == Recipe::Kind::fallback) {
    stats.fallbacks++;
    fallen_back[toString(op.operator_name())]++;
    lock.unlock();
    return at::native::cpu_fallback(op, stack);
  }
  if (entry->recipe.kind == Recipe::Kind::redirect) {
    lock.unlock();
    auto other = c10::Dispatcher::singleton().findSchemaOrThrow(entry->recipe.redirect.c_str(), "");
    TORCH_INTERNAL_ASSERT(other.schema().arguments().size() == arity, entry->recipe.redirect, " has another schema");
    return other.callBoxed(stack);
  }
  Call call{op, args, signature.tensors, {}, {}};
  replay(call, entry->recipe, watch);
  lock.unlock();
  torch::jit::drop(*stack, arity);
  for (auto& output : call.outputs) stack->emplace_back(std::move(output));
  watch.lap(stats.stack_ns);
}

void set_miss_handler(PyObject* callable) {
  Py_INCREF(callable);
  Py_XSETREF(miss_handler, callable);
}

void set_profiling(bool on) { profiling = on; }

RecipeStats recipe_stats() {
  Lock lock(device_mutex());
  return stats;
}

void reset_recipe_stats() {
  Lock lock(device_mutex());
  uint64_t recipes = stats.recipes;
  stats = RecipeStats{};
  stats.recipes = recipes;
}

std::vector<std::pair<std::string, uint64_t>> fallback_counts() {
  Lock lock(device_mutex());
  return {fallen_back.begin(), fallen_back.end()};
}

void clear_recipes() {
  Lock lock(device_mutex());
  cache.clear();
  stats.recipes = 0;
}

namespace {
std::vector<Pipeline> pipelines;
}

uint32_t add_pipeline(Pipeline pipeline) {
  Lock lock(device_mutex());
  pipelines.push_back(pipeline);
  return pipelines.size() - 1;
}

const Pipeline& pipeline_at(uint32_t id) {
  TORCH_CHECK_INDEX(id < pipelines.size(), "no pipeline ", id);
  return pipelines[id];
}

}  // namespace webgpu
