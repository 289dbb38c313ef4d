#include "recipe.h"

#include <ATen/Context.h>
#include <ATen/native/CPUFallback.h>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "device.h"
#include "family.h"
#include "replay.h"

namespace webgpu {

namespace {
PyObject *miss_handler, *trace_handler;
bool verifying;
std::unordered_map<std::string, uint64_t> fallen_back;  // by op

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

// Launches may differ by it; a free bit of an address.
uint64_t deterministic() { return at::globalContext().deterministicAlgorithms(); }

std::string operator_name(const void* op) { return toString(static_cast<const c10::OperatorHandle*>(op)->operator_name()); }

PyObject* call_python(PyObject* handler, const c10::OperatorHandle& op, PyObject* described) {
  auto& name = op.operator_name();
  return described ? PyObject_CallFunction(handler, "ssN", name.name.c_str(), name.overload_name.c_str(), described)
                   : nullptr;
}

// Asks Python for the recipe. Runs without the device lock, takes the GIL.
EntryPtr ask_python(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, bool& redispatch) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* result = call_python(miss_handler, op, describe_arguments(args));
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

// Like ask_python, with some numbers as symbols. None where the lowering declines, fails or depends on numbers that are not
// part of the family; ask_python then has the last word.
std::optional<Template> trace_python(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, const FamilyKey& key,
                                     std::vector<bool> symbolic) {
  PyGILState_STATE gil = PyGILState_Ensure();
  std::optional<Template> made;
  if (!Trace::active()) {
    Trace trace;
    PyObject* result = call_python(trace_handler, op, describe_arguments(args, &symbolic));
    if (!result) rethrow_python(gil);
    if (result != Py_None) {
      Template read;
      read.recipe = parse_recipe(result, &read.holes);
      if (!PyErr_Occurred() && !trace.failed) {
        read.numbers.assign(key.numbers.begin(), key.numbers.end());
        read.symbolic = std::move(symbolic);
        read.code = std::move(trace.code);
        made = std::move(read);
      }
    }
    Py_DECREF(result);
    PyErr_Clear();
  }
  PyGILState_Release(gil);
  return made;
}

// In tests: what was derived or traced is what Python says.
void verify(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, const Recipe& recipe) {
  bool redispatch = false;
  TORCH_INTERNAL_ASSERT(ask_python(op, args, redispatch)->recipe == recipe, toString(op.operator_name()),
                        ": the derived recipe is not the one that Python makes");
}

// The recipe of a call that is not known yet. Without the device lock.
EntryPtr make_entry(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, bool specialised, bool& redispatch) {
  FamilyKey key = family_key(op, args);
  key.words[0] |= deterministic();
  auto entry = std::make_shared<Entry>();
  std::optional<std::vector<bool>> symbolic;
  bool by_value = specialised;
  {
    Lock lock(device_mutex());
    by_value = by_value || depends_on_values(key);
    if (by_value) key.add_values();
    if (auto recipe = derive(key)) {
      stats.derived++;
      entry->recipe = std::move(*recipe);
      lock.unlock();
      if (C10_UNLIKELY(verifying)) verify(op, args, entry->recipe);
      return entry;
    }
    symbolic = what_to_trace(key);
    stats.misses++;
  }
  ensure_device();
  if (symbolic) {
    auto made = trace_python(op, args, key, std::move(*symbolic));
    if (made && (by_value || made->recipe.kind == Recipe::Kind::launch)) {
      if (C10_UNLIKELY(verifying)) verify(op, args, made->recipe);
      entry->recipe = made->recipe;
      Lock lock(device_mutex());
      store_template(key, std::move(*made));
      return entry;
    }
  }
  entry = ask_python(op, args, redispatch);
  Lock lock(device_mutex());
  if (entry->recipe.kind == Recipe::Kind::specialise) {
    if (!by_value) note_values(key);
  } else if (entry->recipe.kind != Recipe::Kind::launch) {
    close_family(key);
  }
  return entry;
}
}  // namespace

void boxed_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Stopwatch watch;
  const size_t arity = op.schema().arguments().size();
  auto args = torch::jit::last(*stack, arity);
  Signature signature;
  signature.words.push_back(reinterpret_cast<uint64_t>(&op.schema()) | deterministic());
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
    bool redispatch = false;
    entry = make_entry(op, args, specialised, redispatch);
    if (redispatch) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
    lock.lock();
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
  Call call{operator_name, &op, args, signature.tensors, {}, {}};
  if (C10_UNLIKELY(timeline_on())) name_launches(call.name(call.named));
  replay(call, entry->recipe, watch);
  lock.unlock();
  torch::jit::drop(*stack, arity);
  for (auto& output : call.outputs) stack->emplace_back(std::move(output));
  watch.lap(stats.stack_ns);
}

void set_miss_handler(PyObject* miss, PyObject* trace) {
  Py_XSETREF(miss_handler, Py_NewRef(miss));
  Py_XSETREF(trace_handler, Py_NewRef(trace));
}

void set_verifying(bool on) { verifying = on; }

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
  clear_families();
  stats.recipes = 0;
}

namespace {
std::vector<Pipeline> pipelines;
std::unordered_set<std::string> names;
}  // namespace

uint32_t add_pipeline(Pipeline pipeline, const char* name) {
  Lock lock(device_mutex());
  pipeline.name = &*names.insert(name).first;
  pipelines.push_back(pipeline);
  return pipelines.size() - 1;
}

const Pipeline& pipeline_at(uint32_t id) {
  TORCH_CHECK_INDEX(id < pipelines.size(), "no pipeline ", id);
  return pipelines[id];
}

}  // namespace webgpu
