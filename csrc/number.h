// The integers a recipe is made of. While a recipe is traced, those that come from the call's sizes are symbols: arithmetic
// on them is written down, and every decision or conversion that depends on their value becomes a condition. What was
// written down then makes the recipe of other sizes, without Python, wherever all the conditions hold (family.h).
// GIL held throughout.
#pragma once
#include <Python.h>

#include <cstdint>
#include <vector>

namespace webgpu {

struct Instruction {
  enum Op : uint8_t { input, constant, add, sub, mul, floordiv, mod, bit_and, shift_left, shift_right, eq, ne, lt, le } op;
  int32_t a = -1, b = -1;  // earlier instructions
  int64_t value = 0;       // of a constant; which input
};

// Runs the instructions; `results` gets a number each. False where a condition does not hold or a number overflows.
bool evaluate(const std::vector<Instruction>& code, const int64_t* inputs, std::vector<int64_t>& results);

// Makes this thread trace as long as it lives. Traces do not nest: see `active`.
class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  static bool active();
  bool failed = false;  // something could not be written down
  std::vector<Instruction> code;
  const uint32_t serial;
};

// An integer, known by its value alone or also by the instruction that computes it.
class Number {
 public:
  Number(int64_t v = 0) : value_(v) {}  // NOLINT: integers are numbers
  static Number input(int32_t k, int64_t value);
  bool symbolic() const;  // belongs to the running trace; numbers of a trace that has ended are plain
  int64_t pin() const;    // the value, on which the recipe depends from here on
  int64_t hint() const { return value_; }
  int32_t node() const;  // the instruction; written down now for a plain number

  friend Number compute(Instruction::Op op, const Number& a, const Number& b);
  friend bool holds(Instruction::Op op, const Number& a, const Number& b);

 private:
  int64_t value_;
  int32_t node_ = -1;
  uint32_t trace_ = 0;
};

Number compute(Instruction::Op op, const Number& a, const Number& b);
bool holds(Instruction::Op op, const Number& a, const Number& b);  // a comparison, which becomes a condition
inline Number operator+(const Number& a, const Number& b) { return compute(Instruction::add, a, b); }
inline Number operator-(const Number& a, const Number& b) { return compute(Instruction::sub, a, b); }
inline Number operator*(const Number& a, const Number& b) { return compute(Instruction::mul, a, b); }
inline Number operator%(const Number& a, const Number& b) { return compute(Instruction::mod, a, b); }
inline bool operator==(const Number& a, const Number& b) { return holds(Instruction::eq, a, b); }
inline bool operator!=(const Number& a, const Number& b) { return !holds(Instruction::eq, a, b); }

PyObject* to_python(const Number& number);  // an int, or a Symbol, which computes and compares like one
Number number_of(PyObject* object);         // of anything with __index__; sets a Python error where there is none
bool is_integer(PyObject* object);          // an int or a Symbol

void init_symbol_type(PyObject* module);

}  // namespace webgpu
