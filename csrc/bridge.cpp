// Python's view of a call (Meta tuples) and of a recipe (plain tuples). Runs only on a recipe miss, with the GIL held.
#include "recipe.h"

#include <c10/util/Exception.h>

#include "device.h"
#include "view.h"

namespace webgpu {

namespace {
PyTypeObject* meta_type;

PyStructSequence_Field meta_fields[] = {
    {"ref", "position among the call's tensors"},
    {"dtype", "c10 scalar type"},
    {"sizes", "tuple of int"},
    {"strides", "tuple of int"},
    {"offset", "storage offset in elements; only its low bits and differences within one alias may be used"},
    {"alias", "equal for tensors of one storage; -1 on the CPU"},
    {"wrapped", "whether it is a Python number wrapped as a tensor"},
    {"value", "the number of a 0-dim CPU tensor, else None"},
    {"device", "c10 device type"},
    {nullptr, nullptr}};
PyStructSequence_Desc meta_desc = {"torch_webgpu._C.Meta", "A tensor on another device, or of a dtype that has none here.",
                                   meta_fields, 9};

PyObject* none() { Py_RETURN_NONE; }

PyObject* to_tuple(at::IntArrayRef values) {
  PyObject* tuple = PyTuple_New(values.size());
  for (size_t i = 0; i < values.size(); i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(values[i]));
  return tuple;
}

PyObject* scalar_value(const at::Tensor& t) {
  if (!t.is_cpu() || t.dim() != 0) return none();
  switch (t.scalar_type()) {
    case at::ScalarType::Double: return PyFloat_FromDouble(*t.const_data_ptr<double>());
    case at::ScalarType::Float: return PyFloat_FromDouble(*t.const_data_ptr<float>());
    case at::ScalarType::Half: return PyFloat_FromDouble(float(*t.const_data_ptr<c10::Half>()));
    case at::ScalarType::BFloat16: return PyFloat_FromDouble(float(*t.const_data_ptr<c10::BFloat16>()));
    case at::ScalarType::Long: return PyLong_FromLongLong(*t.const_data_ptr<int64_t>());
    case at::ScalarType::Int: return PyLong_FromLong(*t.const_data_ptr<int32_t>());
    case at::ScalarType::Short: return PyLong_FromLong(*t.const_data_ptr<int16_t>());
    case at::ScalarType::Char: return PyLong_FromLong(*t.const_data_ptr<int8_t>());
    case at::ScalarType::Byte: return PyLong_FromLong(*t.const_data_ptr<uint8_t>());
    case at::ScalarType::Bool: return PyBool_FromLong(*t.const_data_ptr<bool>());
    default: return none();
  }
}

// Describes arguments in the order in which a split signature takes their numbers; those at `symbolic` become inputs of the
// running trace.
struct Describer {
  const std::vector<bool>* symbolic = nullptr;
  c10::SmallVector<const void*, 8> storages;
  long count = 0;
  int32_t numbers = 0;

  PyObject* number(int64_t value) {
    int32_t k = numbers++;
    return symbolic && (*symbolic)[k] ? to_python(Number::input(k, value)) : PyLong_FromLongLong(value);
  }

  PyObject* extents(at::IntArrayRef values) {
    PyObject* tuple = PyTuple_New(values.size());
    for (size_t i = 0; i < values.size(); i++) PyTuple_SET_ITEM(tuple, i, number(values[i]));
    return tuple;
  }

  PyObject* tensor(const at::Tensor& t) {
    long ref = count++;
    if (!t.defined()) return none();
    long alias = -1;
    bool ours = t.device().type() == c10::DeviceType::PrivateUse1;
    PyObject *sizes = ours ? extents(t.sizes()) : to_tuple(t.sizes()),
             *strides = ours ? extents(t.strides()) : to_tuple(t.strides());
    if (ours) {
      const void* storage = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      for (alias = 0; alias < long(storages.size()) && storages[alias] != storage;) alias++;
      if (alias == long(storages.size())) storages.push_back(storage);
      if (PyObject* view = argument_view(t, ref, alias, sizes, strides)) {
        Py_DECREF(sizes);
        Py_DECREF(strides);
        return view;
      }
    }
    PyObject* meta = PyStructSequence_New(meta_type);
    PyStructSequence_SetItem(meta, 0, PyLong_FromLong(ref));
    PyStructSequence_SetItem(meta, 1, PyLong_FromLong(long(t.scalar_type())));
    PyStructSequence_SetItem(meta, 2, sizes);
    PyStructSequence_SetItem(meta, 3, strides);
    PyStructSequence_SetItem(meta, 4, PyLong_FromLongLong(t.storage_offset()));
    PyStructSequence_SetItem(meta, 5, PyLong_FromLong(alias));
    PyStructSequence_SetItem(meta, 6, PyBool_FromLong(t.unsafeGetTensorImpl()->is_wrapped_number()));
    PyStructSequence_SetItem(meta, 7, scalar_value(t));
    PyStructSequence_SetItem(meta, 8, PyLong_FromLong(long(t.device().type())));
    return meta;
  }

  PyObject* value(const c10::IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isInt()) return number(v.toInt());
    if (v.isDouble()) return PyFloat_FromDouble(v.toDouble());
    if (v.isBool()) return PyBool_FromLong(v.toBool());
    if (v.isString()) return PyUnicode_FromString(v.toStringRef().c_str());
    if (v.isDevice()) return PyUnicode_FromString(v.toDevice().str().c_str());
    if (v.isList()) {
      auto list = v.toListRef();
      PyObject* out = PyList_New(list.size());
      for (size_t i = 0; i < list.size(); i++) PyList_SET_ITEM(out, i, value(list[i]));
      return out;
    }
    return none();
  }
};

int64_t integer(PyObject* object) { return number_of(object).pin(); }

PyObject* item(PyObject* tuple, Py_ssize_t i) { return PyTuple_GetItem(tuple, i); }

// Reads a recipe; symbols leave holes, which other sizes of the family fill.
struct Parser {
  std::vector<Hole> holes;

  int64_t number(PyObject* object, Hole::Place place, size_t outer, size_t inner = 0) {
    Number n = number_of(object);
    if (n.symbolic()) holes.push_back({place, uint32_t(outer), uint32_t(inner), n.node()});
    return n.hint();
  }

  std::vector<int64_t> numbers(PyObject* sequence, Hole::Place place, size_t outer) {
    std::vector<int64_t> out;
    PyObject* fast = PySequence_Fast(sequence, "expected a sequence of integers");
    if (!fast) return out;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    out.reserve(n);
    for (Py_ssize_t i = 0; i < n; i++) out.push_back(number(PySequence_Fast_GET_ITEM(fast, i), place, outer, i));
    Py_DECREF(fast);
    return out;
  }

  Step step(PyObject* tuple, size_t at) {
    Step step;
    step.pipeline = pipeline_at(integer(item(tuple, 0)));
    PyObject* operands = item(tuple, 1);
    for (Py_ssize_t i = 0; i < PyList_Size(operands); i++) {
      PyObject* o = PyList_GetItem(operands, i);
      step.operands.push_back({uint32_t(integer(item(o, 0))), int32_t(integer(item(o, 1))),
                               number(item(o, 2), Hole::delta, at, i), uint64_t(number(item(o, 3), Hole::extent, at, i)),
                               uint32_t(integer(item(o, 4)))});
    }
    PyObject* words = item(tuple, 2);
    step.words.reserve(PyList_Size(words));
    for (Py_ssize_t i = 0; i < PyList_Size(words); i++) {
      PyObject* word = PyList_GetItem(words, i);
      step.words.push_back(PyLong_Check(word) ? uint32_t(PyLong_AsUnsignedLongLongMask(word))
                                              : uint32_t(number(word, Hole::word, at, i)));
    }
    PyObject* patches = item(tuple, 3);
    for (Py_ssize_t i = 0; i < PyList_Size(patches); i++) {
      PyObject* p = PyList_GetItem(patches, i);
      step.patches.push_back({uint32_t(integer(item(p, 0))), PatchKind(integer(item(p, 1))), integer(item(p, 2)) != 0,
                              int32_t(integer(item(p, 3))), number(item(p, 4), Hole::count, at, i)});
    }
    PyObject* groups = item(tuple, 4);
    for (int i = 0; i < 3; i++) step.groups[i] = uint32_t(number(item(groups, i), Hole::group, at, i));
    return step;
  }
};
}  // namespace

void init_meta_type(PyObject* module) {
  meta_type = PyStructSequence_NewType(&meta_desc);
  Py_INCREF(meta_type);
  PyModule_AddObject(module, "Meta", reinterpret_cast<PyObject*>(meta_type));
  init_symbol_type(module);
  init_view_type(module);
  init_words_type(module);
}

PyObject* describe_arguments(at::ArrayRef<c10::IValue> args, const std::vector<bool>* symbolic) {
  Describer describer{symbolic, {}};
  PyObject* tuple = PyTuple_New(args.size());
  for (size_t i = 0; i < args.size(); i++) PyTuple_SET_ITEM(tuple, i, describer.value(args[i]));
  return tuple;
}

// A recipe is None (run on the CPU) or (outputs, temps, steps, may_fail, specialised); see recipe.py.
Recipe parse_recipe(PyObject* result, std::vector<Hole>* holes) {
  Recipe recipe;
  if (result == Py_None) {
    recipe.kind = Recipe::Kind::fallback;
    return recipe;
  }
  Parser parser;
  PyObject* outputs = item(result, 0);
  for (Py_ssize_t i = 0; outputs && i < PyList_Size(outputs); i++) {
    PyObject* o = PyList_GetItem(outputs, i);
    recipe.outputs.push_back({int32_t(integer(item(o, 0))), at::ScalarType(integer(item(o, 1))),
                              parser.numbers(item(o, 2), Hole::output_size, i),
                              parser.numbers(item(o, 3), Hole::output_stride, i)});
    if (PyTuple_Size(o) == 5) {
      recipe.outputs.back().view = true;
      recipe.outputs.back().offset = integer(item(o, 4));
    }
  }
  PyObject* temps = item(result, 1);
  for (Py_ssize_t i = 0; temps && i < PyList_Size(temps); i++) {
    recipe.temps.push_back(parser.number(PyList_GetItem(temps, i), Hole::temp, i));
  }
  PyObject* steps = item(result, 2);
  for (Py_ssize_t i = 0; steps && i < PyList_Size(steps); i++)
    recipe.steps.push_back(parser.step(PyList_GetItem(steps, i), i));
  recipe.may_fail = item(result, 3) == Py_True;
  if (PyTuple_Size(result) == 6) {
    PyObject* returned = item(result, 5);
    for (Py_ssize_t i = 0; i < PySequence_Size(returned); i++) {
      PyObject* index = PySequence_GetItem(returned, i);
      recipe.returned.push_back(int32_t(integer(index)));
      Py_DECREF(index);
    }
  }
  if (item(result, 4) == Py_True) recipe.kind = Recipe::Kind::specialise;
  if (holes) *holes = std::move(parser.holes);
  return recipe;
}

void fill(Recipe& recipe, const std::vector<Hole>& holes, const std::vector<int64_t>& values) {
  for (auto& hole : holes) {
    int64_t value = values[hole.node];
    switch (hole.place) {
      case Hole::output_size: recipe.outputs[hole.outer].sizes[hole.inner] = value; break;
      case Hole::output_stride: recipe.outputs[hole.outer].strides[hole.inner] = value; break;
      case Hole::temp: recipe.temps[hole.outer] = value; break;
      case Hole::delta: recipe.steps[hole.outer].operands[hole.inner].delta = value; break;
      case Hole::extent: recipe.steps[hole.outer].operands[hole.inner].extent = value; break;
      case Hole::word: recipe.steps[hole.outer].words[hole.inner] = uint32_t(value); break;
      case Hole::group: recipe.steps[hole.outer].groups[hole.inner] = uint32_t(value); break;
      case Hole::count: recipe.steps[hole.outer].patches[hole.inner].count = value; break;
    }
  }
}

}  // namespace webgpu
