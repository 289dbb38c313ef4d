// The metadata of a tensor in a lowering (recipe.py's Tensor derives from View): shape arithmetic runs dozens of times a
// recipe miss, so it is native. GIL held throughout.
#include "view.h"

#include <vector>

namespace webgpu {

namespace {
PyTypeObject* view_type;
PyTypeObject* tensor_type;       // what views of arguments are made as; set by recipe.py
PyObject* dtype_table[32] = {};  // by c10 scalar type
PyObject* name_itemsize;
PyObject* name_code;

struct View {
  PyObject_HEAD long ref;
  PyObject *buffer, *dtype, *sizes, *strides;
  Number delta, offset;
  bool wrapped;
  int8_t contiguous;  // -1: not known yet
  bool measured;      // whether the following two are known
  Number extent, numel;
};

View* view(PyObject* object) { return reinterpret_cast<View*>(object); }
Py_ssize_t rank(const View* v) { return PyTuple_GET_SIZE(v->sizes); }
Number at(PyObject* tuple, Py_ssize_t i) { return number_of(PyTuple_GET_ITEM(tuple, i)); }

PyObject* as_tuple(PyObject* sequence) {  // new reference
  return PyTuple_CheckExact(sequence) ? Py_NewRef(sequence) : PySequence_Tuple(sequence);
}

PyObject* contiguous_strides(PyObject*, PyObject* sizes) {
  PyObject* fast = PySequence_Fast(sizes, "expected a sequence of sizes");
  if (!fast) return nullptr;
  Number step = 1;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  PyObject* strides = PyTuple_New(n);
  for (Py_ssize_t i = n - 1; i >= 0; i--) {
    PyTuple_SET_ITEM(strides, i, to_python(step));
    if (!i) break;
    Number size = number_of(PySequence_Fast_GET_ITEM(fast, i));
    if (holds(Instruction::lt, 1, size)) step = step * size;
  }
  Py_DECREF(fast);
  if (PyErr_Occurred()) Py_CLEAR(strides);
  return strides;
}

// Takes over the references to sizes and strides; null if those are, or of unequal length.
PyObject* make(PyTypeObject* type, long ref, PyObject* buffer, PyObject* dtype, PyObject* sizes, PyObject* strides,
               Number delta, Number offset, bool wrapped) {
  View* v = nullptr;
  if (sizes && strides && PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides)) {
    PyErr_Format(PyExc_ValueError, "sizes %R and strides %R differ in length", sizes, strides);
  } else if (sizes && strides) {
    v = view(type->tp_alloc(type, 0));
  }
  if (!v) {
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    return nullptr;
  }
  v->ref = ref;
  v->buffer = Py_NewRef(buffer);
  v->dtype = Py_NewRef(dtype);
  v->sizes = sizes;
  v->strides = strides;
  v->delta = delta;
  v->offset = offset;
  v->wrapped = wrapped;
  v->contiguous = -1;
  v->measured = false;
  return reinterpret_cast<PyObject*>(v);
}

PyObject* another(const View* v, PyObject* sizes, PyObject* strides, Number delta) {
  return make(Py_TYPE(v), v->ref, v->buffer, v->dtype, sizes, strides, v->delta + delta, v->offset + delta, false);
}

PyObject* view_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"ref", "buffer", "dtype", "sizes", "strides", "delta", "offset", "wrapped", nullptr};
  long ref;
  PyObject *buffer, *dtype, *sizes, *strides, *delta = nullptr, *offset = nullptr;
  int wrapped = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "lOOOO|OOp", const_cast<char**>(names), &ref, &buffer, &dtype, &sizes,
                                   &strides, &delta, &offset, &wrapped)) {
    return nullptr;
  }
  Number ahead = delta ? number_of(delta) : 0, start = offset ? number_of(offset) : 0;
  if (PyErr_Occurred()) return nullptr;
  return make(type, ref, buffer, dtype, as_tuple(sizes), as_tuple(strides), ahead, start, wrapped);
}

void view_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  View* v = view(self);
  Py_XDECREF(v->buffer);
  Py_XDECREF(v->dtype);
  Py_XDECREF(v->sizes);
  Py_XDECREF(v->strides);
  type->tp_free(self);
  Py_DECREF(type);
}

// ---------------------------------------------------------------------------------------------------- attributes

void measure(View* v) {
  if (v->measured) return;
  Number count = 1, last = 0;
  for (Py_ssize_t i = 0; i < rank(v); i++) {
    Number size = at(v->sizes, i);
    count = count * size;
    last = last + (size - 1) * at(v->strides, i);
  }
  v->numel = count;
  v->extent = count != 0 ? last + 1 : 0;
  v->measured = true;
}

Number numel(View* v) {
  measure(v);
  return v->numel;
}

Number extent(View* v) {
  measure(v);
  return v->extent;
}

bool contiguous(View* v) {
  if (v->contiguous < 0) {
    v->contiguous = 1;
    Number step = 1;
    bool empty = numel(v) == 0;
    for (Py_ssize_t i = rank(v) - 1; i >= 0 && !empty; i--) {
      Number size = at(v->sizes, i);
      if (size != 1 && at(v->strides, i) != step) {
        v->contiguous = 0;
        break;
      }
      step = step * size;
    }
  }
  return v->contiguous;
}

PyObject* get_numel(PyObject* self, void*) { return to_python(numel(view(self))); }
PyObject* get_ndim(PyObject* self, void*) { return PyLong_FromSsize_t(rank(view(self))); }
PyObject* get_extent(PyObject* self, void*) { return to_python(extent(view(self))); }
PyObject* get_delta(PyObject* self, void*) { return to_python(view(self)->delta); }
PyObject* get_offset(PyObject* self, void*) { return to_python(view(self)->offset); }
PyObject* get_contiguous(PyObject* self, void*) { return PyBool_FromLong(contiguous(view(self))); }
PyObject* get_sizes(PyObject* self, void*) { return Py_NewRef(view(self)->sizes); }
PyObject* get_strides(PyObject* self, void*) { return Py_NewRef(view(self)->strides); }

PyObject* set_layout(PyObject* self, PyObject* args) {
  PyObject *sizes, *strides;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return nullptr;
  if (PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides)) {
    return PyErr_Format(PyExc_ValueError, "sizes %R and strides %R differ in length", sizes, strides);
  }
  View* v = view(self);
  Py_SETREF(v->sizes, Py_NewRef(sizes));
  Py_SETREF(v->strides, Py_NewRef(strides));
  v->contiguous = -1;
  v->measured = false;
  Py_RETURN_NONE;
}

// ---------------------------------------------------------------------------------------------------- other views

PyObject* aligned(PyObject* self, PyObject* size) {
  PyObject* itemsize = PyObject_GetAttr(view(self)->dtype, name_itemsize);
  if (!itemsize) return nullptr;
  Number bytes = view(self)->offset * number_of(itemsize), unit = number_of(size);
  Py_DECREF(itemsize);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(bytes % unit == 0);
}

PyObject* other_view(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 && n != 3) return PyErr_Format(PyExc_TypeError, "view takes sizes, strides and delta");
  Number delta = n == 3 ? number_of(args[2]) : 0;
  if (PyErr_Occurred()) return nullptr;
  return another(view(self), as_tuple(args[0]), as_tuple(args[1]), delta);
}

PyObject* expand(PyObject* self, PyObject* wanted) {
  View* v = view(self);
  PyObject* sizes = as_tuple(wanted);
  if (!sizes) return nullptr;
  Py_ssize_t n = PyTuple_GET_SIZE(sizes), lead = n - rank(v);
  bool same = lead == 0, fits = lead >= 0;
  for (Py_ssize_t i = 0; fits && i < rank(v); i++) {
    Number have = at(v->sizes, i);
    if (have != at(sizes, lead + i)) {
      same = false;
      fits = have == 1;
    }
  }
  if (same || !fits) {
    if (!fits) PyErr_Format(PyExc_RuntimeError, "a tensor of shape %R cannot be expanded to %R", v->sizes, sizes);
    Py_DECREF(sizes);
    return same ? Py_NewRef(self) : nullptr;
  }
  PyObject* strides = PyTuple_New(n);
  for (Py_ssize_t i = 0; i < n; i++) {
    bool repeated = i < lead || at(v->sizes, i - lead) == 1;
    PyTuple_SET_ITEM(strides, i, repeated ? PyLong_FromLong(0) : Py_NewRef(PyTuple_GET_ITEM(v->strides, i - lead)));
  }
  return another(v, sizes, strides, 0);
}

PyObject* narrow(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  View* v = view(self);
  if (n != 3) return PyErr_Format(PyExc_TypeError, "narrow takes a dimension, a start and a length");
  Py_ssize_t dim = PyNumber_AsSsize_t(args[0], PyExc_IndexError);
  Number start = number_of(args[1]);
  if (PyErr_Occurred()) return nullptr;
  if (dim < 0) dim += rank(v);
  if (dim < 0 || dim >= rank(v)) return PyErr_Format(PyExc_IndexError, "narrow: no dimension %zd", dim);
  PyObject* sizes = PyTuple_New(rank(v));
  for (Py_ssize_t i = 0; i < rank(v); i++) {
    PyTuple_SET_ITEM(sizes, i, Py_NewRef(i == dim ? args[2] : PyTuple_GET_ITEM(v->sizes, i)));
  }
  return another(v, sizes, Py_NewRef(v->strides), start * at(v->strides, dim));
}

PyObject* swapped(PyObject* tuple, Py_ssize_t a, Py_ssize_t b) {
  Py_ssize_t n = PyTuple_GET_SIZE(tuple);
  PyObject* out = PyTuple_New(n);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyTuple_SET_ITEM(out, i, Py_NewRef(PyTuple_GET_ITEM(tuple, i == a ? b : i == b ? a : i)));
  }
  return out;
}

PyObject* transpose(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  View* v = view(self);
  if (n != 2) return PyErr_Format(PyExc_TypeError, "transpose takes two dimensions");
  Py_ssize_t a = PyNumber_AsSsize_t(args[0], PyExc_IndexError), b = PyNumber_AsSsize_t(args[1], PyExc_IndexError);
  if (PyErr_Occurred()) return nullptr;
  if (a < 0) a += rank(v);
  if (b < 0) b += rank(v);
  if (std::min(a, b) < 0 || std::max(a, b) >= rank(v)) return PyErr_Format(PyExc_IndexError, "transpose: no such dimension");
  return another(v, swapped(v->sizes, a, b), swapped(v->strides, a, b), 0);
}

// (operands, signature, slots) of a launch over [(name, view, mode)]: see Graph.launch.
PyObject* bind(PyObject*, PyObject* args) {
  PyObject* fast = PySequence_Fast(args, "expected a list of (name, tensor, mode)");
  if (!fast) return nullptr;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
  PyObject *slots = PyDict_New(), *operands = PyList_New(n), *signature = PyTuple_New(n);
  for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) {
    PyObject* arg = PySequence_Fast_GET_ITEM(fast, i);
    if (!PyTuple_Check(arg) || PyTuple_GET_SIZE(arg) != 3 || !PyObject_TypeCheck(PyTuple_GET_ITEM(arg, 1), view_type)) {
      PyErr_Format(PyExc_TypeError, "not a (name, tensor, mode): %R", arg);
      break;
    }
    View* v = view(PyTuple_GET_ITEM(arg, 1));
    PyObject* next = PyLong_FromSsize_t(PyDict_GET_SIZE(slots));
    PyObject* slot = PyDict_SetDefault(slots, v->buffer, next);  // borrowed
    PyObject *itemsize = PyObject_GetAttr(v->dtype, name_itemsize), *code = PyObject_GetAttr(v->dtype, name_code);
    if (slot && itemsize && code) {
      PyList_SET_ITEM(operands, i,
                      Py_BuildValue("(OlNNO)", slot, v->ref, to_python(v->delta), to_python(extent(v)), itemsize));
      PyTuple_SET_ITEM(signature, i, PyTuple_Pack(3, slot, code, PyTuple_GET_ITEM(arg, 2)));
    }
    Py_DECREF(next);
    Py_XDECREF(itemsize);
    Py_XDECREF(code);
  }
  Py_DECREF(fast);
  PyObject* result = PyErr_Occurred() ? nullptr : PyTuple_Pack(3, operands, signature, slots);
  Py_DECREF(operands);
  Py_DECREF(signature);
  Py_DECREF(slots);
  return result;
}

// See kernels/pointwise.py's collapse.
PyObject* collapse(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "collapse takes sizes and a sequence of strides");
  PyObject* all = PySequence_Tuple(args[1]);
  PyObject* sizes = all ? as_tuple(args[0]) : nullptr;
  if (!sizes) {
    Py_XDECREF(all);
    return nullptr;
  }
  const Py_ssize_t rank = PyTuple_GET_SIZE(sizes), operands = PyTuple_GET_SIZE(all);
  std::vector<Number> kept_sizes, kept, last(operands);  // strides by dimension, then operand
  for (Py_ssize_t d = 0; d < rank && !PyErr_Occurred(); d++) {
    Number size = at(sizes, d);
    bool joins = !kept_sizes.empty();
    for (Py_ssize_t k = 0; k < operands; k++) {
      PyObject* stride = PySequence_GetItem(PyTuple_GET_ITEM(all, k), d);
      if (!stride) break;
      last[k] = number_of(stride);
      Py_DECREF(stride);
    }
    if (size == 1) continue;
    for (Py_ssize_t k = 0; k < operands && joins; k++) joins = kept[kept.size() - operands + k] == last[k] * size;
    if (joins) {
      kept_sizes.back() = kept_sizes.back() * size;
      std::copy(last.begin(), last.end(), kept.end() - operands);
    } else {
      kept_sizes.push_back(size);
      kept.insert(kept.end(), last.begin(), last.end());
    }
  }
  Py_DECREF(all);
  Py_DECREF(sizes);
  if (PyErr_Occurred()) return nullptr;
  const auto count = Py_ssize_t(kept_sizes.size());
  PyObject *out = PyList_New(count), *strides = PyList_New(operands);
  for (Py_ssize_t d = 0; d < count; d++) PyList_SET_ITEM(out, d, to_python(kept_sizes[d]));
  for (Py_ssize_t k = 0; k < operands; k++) {
    PyObject* column = PyList_New(count);
    for (Py_ssize_t d = 0; d < count; d++) PyList_SET_ITEM(column, d, to_python(kept[d * operands + k]));
    PyList_SET_ITEM(strides, k, column);
  }
  return Py_BuildValue("(NN)", out, strides);
}

PyObject* set_tensor_type(PyObject*, PyObject* args) {
  PyObject *type, *dtypes;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &type, &PyDict_Type, &dtypes)) return nullptr;
  Py_XSETREF(tensor_type, reinterpret_cast<PyTypeObject*>(Py_NewRef(type)));
  PyObject *code, *dtype;
  for (Py_ssize_t i = 0; PyDict_Next(dtypes, &i, &code, &dtype);) {
    long k = PyLong_AsLong(code);
    if (k >= 0 && k < 32) Py_XSETREF(dtype_table[k], Py_NewRef(dtype));
  }
  Py_RETURN_NONE;
}

PyGetSetDef getters[] = {{"numel", get_numel, nullptr, "number of elements", nullptr},
                         {"ndim", get_ndim, nullptr, "number of dimensions", nullptr},
                         {"extent", get_extent, nullptr, "elements from the first to the last one, inclusive", nullptr},
                         {"contiguous", get_contiguous, nullptr, "row-major order without gaps", nullptr},
                         {"sizes", get_sizes, nullptr, nullptr, nullptr},
                         {"strides", get_strides, nullptr, "in elements", nullptr},
                         {"delta", get_delta, nullptr, nullptr, nullptr},
                         {"offset", get_offset, nullptr, nullptr, nullptr},
                         {}};
PyMemberDef members[] = {{"ref", T_LONG, offsetof(View, ref), 0, nullptr},
                         {"buffer", T_OBJECT_EX, offsetof(View, buffer), 0, nullptr},
                         {"dtype", T_OBJECT_EX, offsetof(View, dtype), 0, nullptr},
                         {"wrapped", T_BOOL, offsetof(View, wrapped), 0, nullptr},
                         {}};
PyMethodDef view_methods[] = {{"aligned", aligned, METH_O, nullptr},
                              {"view", reinterpret_cast<PyCFunction>(other_view), METH_FASTCALL, nullptr},
                              {"expand", expand, METH_O, nullptr},
                              {"narrow", reinterpret_cast<PyCFunction>(narrow), METH_FASTCALL, nullptr},
                              {"transpose", reinterpret_cast<PyCFunction>(transpose), METH_FASTCALL, nullptr},
                              {"set_layout", set_layout, METH_VARARGS, nullptr},
                              {}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(view_new)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(view_dealloc)},
                       {Py_tp_getset, getters},
                       {Py_tp_members, members},
                       {Py_tp_methods, view_methods},
                       {0, nullptr}};
PyType_Spec spec = {"torch_webgpu._C.View", sizeof(View), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
PyMethodDef functions[] = {{"bind", bind, METH_O, "bind([(name, view, mode)]) -> (operands, signature, slots)"},
                           {"contiguous_strides", contiguous_strides, METH_O, "row-major strides in elements"},
                           {"collapse", reinterpret_cast<PyCFunction>(collapse), METH_FASTCALL, "collapse(sizes, strides)"},
                           {"set_tensor_type", set_tensor_type, METH_VARARGS, "set_tensor_type(class, dtypes by code)"},
                           {}};
}  // namespace

void init_view_type(PyObject* module) {
  name_itemsize = PyUnicode_InternFromString("itemsize");
  name_code = PyUnicode_InternFromString("code");
  view_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  Py_XINCREF(view_type);
  PyModule_AddObject(module, "View", reinterpret_cast<PyObject*>(view_type));
  PyModule_AddFunctions(module, functions);
}

PyObject* argument_view(const at::Tensor& t, long ref, long alias, PyObject* sizes, PyObject* strides) {
  auto code = static_cast<size_t>(t.scalar_type());
  if (code >= 32 || !dtype_table[code] || !tensor_type) return nullptr;
  PyObject* buffer = PyLong_FromLong(alias);
  PyObject* made = make(tensor_type, ref, buffer, dtype_table[code], Py_NewRef(sizes), Py_NewRef(strides), 0,
                        t.storage_offset(), t.unsafeGetTensorImpl()->is_wrapped_number());
  Py_DECREF(buffer);
  return made;
}

}  // namespace webgpu
