#include "plan.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <algorithm>
#include <memory>
#include <unordered_map>

#include "queue.h"
#include "replay.h"

namespace webgpu {

namespace {
struct Entry {
  std::vector<uint64_t> words;
  std::vector<uint64_t> values;  // of the call's numbers; they matter where the recipe was made for them (specialise)
  Recipe recipe;
  uint64_t used = 0;  // the call that used it last
};
}  // namespace

// One compiled graph: a plan for every signature that it was called with.
struct Plans {
  std::string name;
  PyObject* miss;
  size_t most;  // sizes that never come back (a cache that grows token by token) would fill the memory
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<Entry>>> entries;
  size_t count = 0;
  uint64_t calls = 0;
  uint32_t generation = device_generation();
};

namespace {
constexpr const char* capsule_name = "torch_webgpu.Plans";

std::string plans_name(const void* plans) { return static_cast<const Plans*>(plans)->name; }

void free_plans(PyObject* capsule) {
  auto* plans = static_cast<Plans*>(PyCapsule_GetPointer(capsule, capsule_name));
  Py_XDECREF(plans->miss);
  delete plans;
}

std::shared_ptr<Entry> find(Plans& plans, uint64_t hash, const Signature& signature) {
  auto found = plans.entries.find(hash);
  if (found == plans.entries.end()) return nullptr;
  for (auto& entry : found->second) {
    bool any = entry->recipe.kind != Recipe::Kind::specialise;
    if (signature.words.size() == entry->words.size() &&
        std::equal(entry->words.begin(), entry->words.end(), signature.words.begin()) &&
        (any || std::equal(entry->values.begin(), entry->values.end(), signature.values.begin()))) {
      return entry;
    }
  }
  return nullptr;
}

void add(Plans& plans, uint64_t hash, const std::shared_ptr<Entry>& entry) {
  if (plans.count >= plans.most && plans.count) {
    auto oldest = plans.entries.begin();
    size_t at = 0;
    for (auto bucket = plans.entries.begin(); bucket != plans.entries.end(); ++bucket) {
      for (size_t i = 0; i < bucket->second.size(); i++) {
        if (bucket->second[i]->used < oldest->second[at]->used) oldest = bucket, at = i;
      }
    }
    oldest->second.erase(oldest->second.begin() + at);
    if (oldest->second.empty()) plans.entries.erase(oldest);
    plans.count--;
  }
  plans.entries[hash].push_back(entry);
  plans.count++;
}

// Takes the GIL; without the device lock. Null where Python says that the graph cannot run as a plan.
std::shared_ptr<Entry> ask_python(Plans& plans, at::ArrayRef<c10::IValue> args) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* described = describe_arguments(args);
  PyObject* result = described ? PyObject_CallFunctionObjArgs(plans.miss, described, nullptr) : nullptr;
  Py_XDECREF(described);
  if (!result) rethrow_python(gil);
  auto entry = std::make_shared<Entry>();
  entry->recipe = parse_recipe(result);
  Py_DECREF(result);
  if (PyErr_Occurred()) rethrow_python(gil);
  PyGILState_Release(gil);
  return entry;
}
}  // namespace

PyObject* make_plans(const std::string& name, PyObject* miss, size_t most) {
  Py_INCREF(miss);
  return PyCapsule_New(new Plans{name, miss, most, {}, 0, 0, device_generation()}, capsule_name, free_plans);
}

Plans* plans_of(PyObject* capsule) { return static_cast<Plans*>(PyCapsule_GetPointer(capsule, capsule_name)); }

bool run_plan(Plans& plans, const std::vector<c10::IValue>& args, uint64_t times, std::vector<at::Tensor>& outputs) {
  RECORD_FUNCTION("webgpu::plan " + plans.name, c10::ArrayRef<const c10::IValue>());
  Stopwatch watch;
  Signature signature;
  signature.words.push_back(at::globalContext().deterministicAlgorithms());
  for (auto& arg : args) signature.value(arg);
  uint64_t hash = hash_words(signature.words.data(), signature.words.size());
  Lock lock(device_mutex());
  if (plans.generation != device_generation()) {  // the pipelines went with their device
    plans.entries.clear();
    plans.count = 0;
    plans.generation = device_generation();
  }
  auto entry = find(plans, hash, signature);
  watch.lap(stats.key_ns);
  if (!entry) {
    lock.unlock();
    ensure_device();
    entry = ask_python(plans, args);
    entry->words.assign(signature.words.begin(), signature.words.end());
    entry->values.assign(signature.values.begin(), signature.values.end());
    lock.lock();
    if (!find(plans, hash, signature)) add(plans, hash, entry);
  }
  entry->used = ++plans.calls;
  if (entry->recipe.kind == Recipe::Kind::fallback) return false;
  if (C10_UNLIKELY(timeline_on())) name_launches("");
  HoldSubmits hold;  // one submit, unless the plan needs more uniform slots than a batch has
  for (uint64_t i = 0; i < times; i++) {
    Call call{plans_name, &plans, args, signature.tensors, {}, {}};
    replay(call, entry->recipe, watch);
    if (hold.outermost()) flush();
    if (i + 1 < times) continue;
    for (int32_t index : entry->recipe.returned) outputs.push_back(index < 0 ? at::Tensor() : call.outputs[index]);
  }
  return true;
}

}  // namespace webgpu
