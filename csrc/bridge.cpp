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

struct Describer {
  c10::SmallVector<const void*, 8> storages;
  long count = 0;

  PyObject* tensor(const at::Tensor& t) {
    long ref = count++;
    if (!t.defined()) return none();
    long alias = -1;
    if (t.device().type() == c10::DeviceType::PrivateUse1) {
      const void* storage = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      for (alias = 0; alias < long(storages.size()) && storages[alias] != storage;) alias++;
      if (alias == long(storages.size())) storages.push_back(storage);
      if (PyObject* view = argument_view(t, ref, alias)) return view;
    }
    PyObject* meta = PyStructSequence_New(meta_type);
    PyStructSequence_SetItem(meta, 0, PyLong_FromLong(ref));
    PyStructSequence_SetItem(meta, 1, PyLong_FromLong(long(t.scalar_type())));
    PyStructSequence_SetItem(meta, 2, to_tuple(t.sizes()));
    PyStructSequence_SetItem(meta, 3, to_tuple(t.strides()));
    PyStructSequence_SetItem(meta, 4, PyLong_FromLongLong(t.storage_offset()));
    PyStructSequence_SetItem(meta, 5, PyLong_FromLong(alias));
    PyStructSequence_SetItem(meta, 6, PyBool_FromLong(t.unsafeGetTensorImpl()->is_wrapped_number()));
    PyStructSequence_SetItem(meta, 7, scalar_value(t));
    PyStructSequence_SetItem(meta, 8, PyLong_FromLong(long(t.device().type())));
    return meta;
  }

  PyObject* value(const c10::IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isInt()) return PyLong_FromLongLong(v.toInt());
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

int64_t integer(PyObject* object) { return PyLong_AsLongLong(object); }

std::vector<int64_t> integers(PyObject* sequence) {
  std::vector<int64_t> out;
  PyObject* fast = PySequence_Fast(sequence, "expected a sequence of integers");
  if (!fast) return out;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  out.reserve(n);
  for (Py_ssize_t i = 0; i < n; i++) out.push_back(integer(PySequence_Fast_GET_ITEM(fast, i)));
  Py_DECREF(fast);
  return out;
}

PyObject* item(PyObject* tuple, Py_ssize_t i) { return PyTuple_GetItem(tuple, i); }

Step parse_step(PyObject* tuple) {
  Step step;
  step.pipeline = pipeline_at(integer(item(tuple, 0)));
  PyObject* operands = item(tuple, 1);
  for (Py_ssize_t i = 0; i < PyList_Size(operands); i++) {
    PyObject* o = PyList_GetItem(operands, i);
    step.operands.push_back({uint32_t(integer(item(o, 0))), int32_t(integer(item(o, 1))), integer(item(o, 2)),
                             uint64_t(integer(item(o, 3))), uint32_t(integer(item(o, 4)))});
  }
  PyObject* words = item(tuple, 2);
  step.words.reserve(PyList_Size(words));
  for (Py_ssize_t i = 0; i < PyList_Size(words); i++) {
    step.words.push_back(uint32_t(PyLong_AsUnsignedLongLongMask(PyList_GetItem(words, i))));
  }
  PyObject* patches = item(tuple, 3);
  for (Py_ssize_t i = 0; i < PyList_Size(patches); i++) {
    PyObject* p = PyList_GetItem(patches, i);
    step.patches.push_back({uint32_t(integer(item(p, 0))), PatchKind(integer(item(p, 1))), integer(item(p, 2)) != 0,
                            int32_t(integer(item(p, 3))), integer(item(p, 4))});
  }
  PyObject* groups = item(tuple, 4);
  for (int i = 0; i < 3; i++) step.groups[i] = uint32_t(integer(item(groups, i)));
  return step;
}
}  // namespace

void init_meta_type(PyObject* module) {
  meta_type = PyStructSequence_NewType(&meta_desc);
  Py_INCREF(meta_type);
  PyModule_AddObject(module, "Meta", reinterpret_cast<PyObject*>(meta_type));
  init_view_type(module);
  init_words_type(module);
}

PyObject* describe_arguments(at::ArrayRef<c10::IValue> args) {
  Describer describer;
  PyObject* tuple = PyTuple_New(args.size());
  for (size_t i = 0; i < args.size(); i++) PyTuple_SET_ITEM(tuple, i, describer.value(args[i]));
  return tuple;
}

// A recipe is None (run on the CPU) or (outputs, temps, steps, may_fail, specialised); see recipe.py.
Recipe parse_recipe(PyObject* result) {
  Recipe recipe;
  if (result == Py_None) {
    recipe.kind = Recipe::Kind::fallback;
    return recipe;
  }
  PyObject* outputs = item(result, 0);
  for (Py_ssize_t i = 0; outputs && i < PyList_Size(outputs); i++) {
    PyObject* o = PyList_GetItem(outputs, i);
    recipe.outputs.push_back(
        {int32_t(integer(item(o, 0))), at::ScalarType(integer(item(o, 1))), integers(item(o, 2)), integers(item(o, 3))});
    if (PyTuple_Size(o) == 5) {
      recipe.outputs.back().view = true;
      recipe.outputs.back().offset = integer(item(o, 4));
    }
  }
  PyObject* temps = item(result, 1);
  for (Py_ssize_t i = 0; temps && i < PyList_Size(temps); i++) recipe.temps.push_back(integer(PyList_GetItem(temps, i)));
  PyObject* steps = item(result, 2);
  for (Py_ssize_t i = 0; steps && i < PyList_Size(steps); i++) recipe.steps.push_back(parse_step(PyList_GetItem(steps, i)));
  recipe.may_fail = item(result, 3) == Py_True;
  if (PyTuple_Size(result) == 6) {
    for (int64_t index : integers(item(result, 5))) recipe.returned.push_back(int32_t(index));
  }
  if (item(result, 4) == Py_True) recipe.kind = Recipe::Kind::specialise;
  return recipe;
}

}  // namespace webgpu
