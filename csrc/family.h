// Families: calls that differ only in sizes, strides and integers. From the second call on, the lowering of one is traced
// with those numbers that were seen to change as symbols (number.h). Where the conditions of the trace hold for another
// call, its recipe is the traced one with other numbers: a sequence that grows does not pay for Python at every token.
#pragma once
#include <optional>

#include "number.h"
#include "recipe.h"
#include "signature.h"

namespace webgpu {

// Where a lowering reads numbers that are not part of a signature (floats), calls with the same values are a family.
struct FamilyKey : BasicSignature<true> {
  void add_values();
};

// One traced call.
struct Template {
  std::vector<int64_t> numbers;  // of the call that was traced
  std::vector<bool> symbolic;    // which of them may differ
  std::vector<Instruction> code;
  std::vector<Hole> holes;
  Recipe recipe;
  bool general() const;  // whether any number may really differ
};

FamilyKey family_key(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args);

// These need the device lock.
std::optional<Recipe> derive(const FamilyKey& key);                    // by a trace that fits
std::optional<std::vector<bool>> what_to_trace(const FamilyKey& key);  // notes a call; none: not worth a trace
void store_template(const FamilyKey& key, Template made);
bool depends_on_values(const FamilyKey& key);
void note_values(const FamilyKey& key);   // from now on it does
void close_family(const FamilyKey& key);  // its calls are not launches
void clear_families();

}  // namespace webgpu
