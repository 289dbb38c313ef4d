#include "number.h"

#include <atomic>

namespace webgpu {

namespace {
thread_local Trace* current;
std::atomic<uint32_t> traces{0};

// Python's rules: division rounds down, a remainder has the divisor's sign. False where there is no such int64.
bool apply(Instruction::Op op, int64_t a, int64_t b, int64_t& out) {
  switch (op) {
    case Instruction::add: return !__builtin_add_overflow(a, b, &out);
    case Instruction::sub: return !__builtin_sub_overflow(a, b, &out);
    case Instruction::mul: return !__builtin_mul_overflow(a, b, &out);
    case Instruction::floordiv:
    case Instruction::mod: {
      if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
      int64_t quotient = a / b, rest = a % b;
      bool down = rest && (rest < 0) != (b < 0);
      out = op == Instruction::mod ? rest + (down ? b : 0) : quotient - down;
      return true;
    }
    case Instruction::bit_and: out = a & b; return true;
    case Instruction::shift_left: return b >= 0 && b < 62 && !__builtin_mul_overflow(a, int64_t(1) << b, &out);
    case Instruction::shift_right: out = a >> (b > 63 ? 63 : b); return b >= 0;
    case Instruction::eq: out = a == b; return true;
    case Instruction::ne: out = a != b; return true;
    case Instruction::lt: out = a < b; return true;
    case Instruction::le: out = a <= b; return true;
    default: return false;
  }
}

int32_t write_down(Instruction instruction) {
  current->code.push_back(instruction);
  return int32_t(current->code.size()) - 1;
}
}  // namespace

bool evaluate(const std::vector<Instruction>& code, const int64_t* inputs, std::vector<int64_t>& results) {
  results.resize(code.size());
  for (size_t i = 0; i < code.size(); i++) {
    auto& at = code[i];
    if (at.op <= Instruction::constant) {
      results[i] = at.op == Instruction::input ? inputs[at.value] : at.value;
    } else if (!apply(at.op, results[at.a], results[at.b], results[i]) || (at.op >= Instruction::eq && !results[i])) {
      return false;
    }
  }
  return true;
}

Trace::Trace() : serial(++traces) { current = this; }
Trace::~Trace() { current = nullptr; }
bool Trace::active() { return current; }

Number Number::input(int32_t k, int64_t value) {
  Number number(value);
  number.node_ = write_down({Instruction::input, -1, -1, k});
  number.trace_ = current->serial;
  return number;
}

bool Number::symbolic() const { return node_ >= 0 && current && current->serial == trace_; }

int32_t Number::node() const { return symbolic() ? node_ : write_down({Instruction::constant, -1, -1, value_}); }

int64_t Number::pin() const {
  if (symbolic()) holds(Instruction::eq, *this, value_);
  return value_;
}

Number compute(Instruction::Op op, const Number& a, const Number& b) {
  Number out;
  bool fits = apply(op, a.value_, b.value_, out.value_);
  if (!a.symbolic() && !b.symbolic()) return out;
  if (!fits) current->failed = true;
  out.node_ = write_down({op, a.node(), b.node()});
  out.trace_ = current->serial;
  return out;
}

bool holds(Instruction::Op op, const Number& a, const Number& b) {
  int64_t truth = 0;
  apply(op, a.value_, b.value_, truth);
  if (!a.symbolic() && !b.symbolic()) return truth;
  int32_t left = a.node(), right = b.node();
  switch (op) {
    case Instruction::eq: write_down({truth ? Instruction::eq : Instruction::ne, left, right}); break;
    case Instruction::ne: write_down({truth ? Instruction::ne : Instruction::eq, left, right}); break;
    case Instruction::lt:
      write_down(truth ? Instruction{op, left, right} : Instruction{Instruction::le, right, left});
      break;
    default: write_down(truth ? Instruction{op, left, right} : Instruction{Instruction::lt, right, left}); break;
  }
  return truth;
}

// ---------------------------------------------------------------------------------------------------- the Python type

namespace {
PyTypeObject* symbol_type;

struct Symbol {
  PyObject_HEAD Number number;
};

bool is_symbol(PyObject* object) { return Py_TYPE(object) == symbol_type; }
const Number& number_in(PyObject* object) { return reinterpret_cast<Symbol*>(object)->number; }
PyObject* pinned(PyObject* self) { return PyLong_FromLongLong(number_in(self).pin()); }

// int(object) where it is a symbol, else the object; a new reference.
PyObject* plain(PyObject* object) { return is_symbol(object) ? pinned(object) : Py_NewRef(object); }

template <Instruction::Op op, binaryfunc otherwise>
PyObject* binary(PyObject* a, PyObject* b) {
  if (is_integer(a) && is_integer(b)) {
    Number left = number_of(a), right = number_of(b);
    int64_t out;
    if (!PyErr_Occurred() && apply(op, left.hint(), right.hint(), out)) return to_python(compute(op, left, right));
    PyErr_Clear();  // division by zero, or beyond int64: Python's own integers decide
  }
  PyObject *left = plain(a), *right = plain(b);
  PyObject* result = otherwise(left, right);
  Py_DECREF(left);
  Py_DECREF(right);
  return result;
}

template <binaryfunc otherwise>
PyObject* on_values(PyObject* a, PyObject* b) {
  PyObject *left = plain(a), *right = plain(b);
  PyObject* result = otherwise(left, right);
  Py_DECREF(left);
  Py_DECREF(right);
  return result;
}

PyObject* power(PyObject* a, PyObject* b, PyObject* c) {
  PyObject *base = plain(a), *exponent = plain(b), *modulus = plain(c);
  PyObject* result = PyNumber_Power(base, exponent, modulus);
  Py_DECREF(base);
  Py_DECREF(exponent);
  Py_DECREF(modulus);
  return result;
}

PyObject* divided(PyObject* a, PyObject* b) {
  PyObject* quotient = PyNumber_FloorDivide(a, b);
  PyObject* rest = quotient ? PyNumber_Remainder(a, b) : nullptr;
  if (rest) return Py_BuildValue("(NN)", quotient, rest);
  Py_XDECREF(quotient);
  return nullptr;
}

PyObject* negative(PyObject* self) { return to_python(Number(0) - number_in(self)); }
PyObject* itself(PyObject* self) { return Py_NewRef(self); }
PyObject* absolute(PyObject* self) { return holds(Instruction::lt, number_in(self), 0) ? negative(self) : Py_NewRef(self); }
int truth(PyObject* self) { return number_in(self) != 0; }

PyObject* as_float(PyObject* self) { return PyFloat_FromDouble(double(number_in(self).pin())); }

PyObject* compare(PyObject* a, PyObject* b, int op) {
  if (!is_integer(b)) {
    if (!PyFloat_Check(b)) Py_RETURN_NOTIMPLEMENTED;
    PyObject* left = pinned(a);
    PyObject* result = PyObject_RichCompare(left, b, op);
    Py_DECREF(left);
    return result;
  }
  Number left = number_in(a), right = number_of(b);
  if (PyErr_Occurred()) {  // beyond int64
    PyErr_Clear();
    PyObject* value = pinned(a);
    PyObject* result = PyObject_RichCompare(value, b, op);
    Py_DECREF(value);
    return result;
  }
  switch (op) {
    case Py_EQ: return PyBool_FromLong(left == right);
    case Py_NE: return PyBool_FromLong(left != right);
    case Py_LT: return PyBool_FromLong(holds(Instruction::lt, left, right));
    case Py_LE: return PyBool_FromLong(holds(Instruction::le, left, right));
    case Py_GT: return PyBool_FromLong(holds(Instruction::lt, right, left));
    default: return PyBool_FromLong(holds(Instruction::le, right, left));
  }
}

Py_hash_t hash_of(PyObject* self) {
  PyObject* value = pinned(self);
  Py_hash_t hash = PyObject_Hash(value);
  Py_DECREF(value);
  return hash;
}

PyObject* text_of(PyObject* self) {
  PyObject* value = pinned(self);
  PyObject* text = PyObject_Str(value);
  Py_DECREF(value);
  return text;
}

// isinstance(symbol, int) holds, while C code that takes ints only (PyLong_Check) goes through __index__, which pins.
PyObject* class_of(PyObject*, void*) { return Py_NewRef(reinterpret_cast<PyObject*>(&PyLong_Type)); }

// What a symbol does not do itself (bit_length, to_bytes, ...) its value does.
PyObject* attribute(PyObject* self, PyObject* name) {
  if (PyObject* own = PyObject_GenericGetAttr(self, name)) return own;
  PyErr_Clear();
  PyObject* value = pinned(self);
  PyObject* result = PyObject_GetAttr(value, name);
  Py_DECREF(value);
  return result;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename F>
void* slot(F function) {
  return reinterpret_cast<void*>(function);
}
PyGetSetDef getters[] = {{"__class__", class_of, nullptr, nullptr, nullptr}, {}};
PyType_Slot slots[] = {{Py_nb_add, slot(binary<Instruction::add, PyNumber_Add>)},
                       {Py_nb_subtract, slot(binary<Instruction::sub, PyNumber_Subtract>)},
                       {Py_nb_multiply, slot(binary<Instruction::mul, PyNumber_Multiply>)},
                       {Py_nb_floor_divide, slot(binary<Instruction::floordiv, PyNumber_FloorDivide>)},
                       {Py_nb_remainder, slot(binary<Instruction::mod, PyNumber_Remainder>)},
                       {Py_nb_and, slot(binary<Instruction::bit_and, PyNumber_And>)},
                       {Py_nb_lshift, slot(binary<Instruction::shift_left, PyNumber_Lshift>)},
                       {Py_nb_rshift, slot(binary<Instruction::shift_right, PyNumber_Rshift>)},
                       {Py_nb_or, slot(on_values<PyNumber_Or>)},
                       {Py_nb_xor, slot(on_values<PyNumber_Xor>)},
                       {Py_nb_true_divide, slot(on_values<PyNumber_TrueDivide>)},
                       {Py_nb_power, slot(power)},
                       {Py_nb_divmod, slot(divided)},
                       {Py_nb_negative, slot(negative)},
                       {Py_nb_positive, slot(itself)},
                       {Py_nb_absolute, slot(absolute)},
                       {Py_nb_bool, slot(truth)},
                       {Py_nb_index, slot(pinned)},
                       {Py_nb_int, slot(pinned)},
                       {Py_nb_float, slot(as_float)},
                       {Py_tp_richcompare, slot(compare)},
                       {Py_tp_hash, slot(hash_of)},
                       {Py_tp_str, slot(text_of)},
                       {Py_tp_repr, slot(text_of)},
                       {Py_tp_getattro, slot(attribute)},
                       {Py_tp_getset, getters},
                       {Py_tp_dealloc, slot(dealloc)},
                       {0, nullptr}};
PyType_Spec spec = {"torch_webgpu._C.Symbol", sizeof(Symbol), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};
}  // namespace

bool is_integer(PyObject* object) { return PyLong_Check(object) || is_symbol(object); }

PyObject* to_python(const Number& number) {
  if (!number.symbolic()) return PyLong_FromLongLong(number.hint());
  PyObject* symbol = symbol_type->tp_alloc(symbol_type, 0);
  if (symbol) new (&reinterpret_cast<Symbol*>(symbol)->number) Number(number);
  return symbol;
}

Number number_of(PyObject* object) {
  if (is_symbol(object)) return number_in(object);
  return PyLong_AsLongLong(object);
}

void init_symbol_type(PyObject* module) {
  symbol_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  Py_XINCREF(symbol_type);
  PyModule_AddObject(module, "Symbol", reinterpret_cast<PyObject*>(symbol_type));
}

}  // namespace webgpu
