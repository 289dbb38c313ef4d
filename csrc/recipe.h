// Prepared launches. Python describes an op once (a recipe); this file finds it again by signature and replays it.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <cstdint>
#include <vector>

#include "encoder.h"

namespace webgpu {

// What an operand or output points at: arg tensors count from 0 in order of appearance, lists flattened.
constexpr int32_t ref_output = 1 << 20, ref_temp = 2 << 20, ref_error = 3 << 20;

struct Operand {
  uint32_t slot;      // which binding
  int32_t ref;        // which tensor
  int64_t delta;      // elements added to the tensor's storage offset
  uint64_t extent;    // elements from there that the launch may touch
  uint32_t itemsize;  // bytes
  bool operator==(const Operand&) const = default;
};

// A uniform word that changes between replays.
enum class PatchKind : uint8_t { f32, i32, i64, random };
struct Patch {
  uint32_t word;
  PatchKind kind;
  bool tensor;    // the value is a 0-dim CPU tensor (index: flattened tensor), else a scalar argument (index: argument)
  int32_t index;  // for random: the generator argument or -1
  int64_t count;  // for random: counters consumed
  bool operator==(const Patch&) const = default;
};

struct Step {
  Pipeline pipeline;
  std::vector<Operand> operands;  // the first words of the uniform are their element offsets, in this order
  std::vector<uint32_t> words;
  std::vector<Patch> patches;
  uint32_t groups[3];
  bool operator==(const Step&) const = default;
};

struct Output {
  int32_t alias;  // flattened arg tensor written in place, or -1 for a new tensor; of a view, the tensor it is a view of
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  bool view = false;
  int64_t offset = 0;  // of a view, elements from the start of its base
  bool operator==(const Output&) const = default;
};

struct Recipe {
  enum class Kind : uint8_t { launch, fallback, specialise, redirect } kind = Kind::launch;
  std::string redirect;   // the op that does the work instead, of the same schema
  bool may_fail = false;  // kernels may write the error buffer
  std::vector<Output> outputs;
  std::vector<uint64_t> temps;  // bytes
  std::vector<Step> steps;
  std::vector<int32_t> returned;  // of a plan: which outputs the call returns; -1 is none
  bool operator==(const Recipe&) const = default;
};

struct RecipeStats {
  uint64_t launches = 0, misses = 0, derived = 0, recipes = 0, fallbacks = 0;
  // ns, only counted while profiling
  uint64_t key_ns = 0, output_ns = 0, record_ns = 0, stack_ns = 0, miss_ns = 0;
};

// The boxed kernel of every op: key → recipe → replay; a miss asks Python.
void boxed_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

void set_miss_handler(PyObject* miss, PyObject* trace);
void set_verifying(bool on);
void set_profiling(bool on);
RecipeStats recipe_stats();
void reset_recipe_stats();
void clear_recipes();
std::vector<std::pair<std::string, uint64_t>> fallback_counts();
uint32_t add_pipeline(Pipeline, const char* name);
const Pipeline& pipeline_at(uint32_t id);

// A number in a recipe that depends on the sizes of the call, by the instruction of a trace that computes it.
struct Hole {
  enum Place : uint8_t { output_size, output_stride, temp, delta, extent, word, group, count } place;
  uint32_t outer, inner;
  int32_t node;
};

// bridge.cpp: Python's view of arguments and recipes (GIL held). Numbers at `symbolic` become inputs of the running trace.
void init_meta_type(PyObject* module);
PyObject* describe_arguments(at::ArrayRef<c10::IValue> args, const std::vector<bool>* symbolic = nullptr);
Recipe parse_recipe(PyObject* result, std::vector<Hole>* holes = nullptr);
void fill(Recipe& recipe, const std::vector<Hole>& holes, const std::vector<int64_t>& values);

}  // namespace webgpu
