// The uniform words of a launch while its recipe is made (recipe.py's Words derives from WordList). GIL held throughout.
#include <cstring>

#include "view.h"

namespace webgpu {

namespace {
struct WordList {
  PyObject_HEAD PyObject *words, *index, *patches;
};

WordList* list(PyObject* object) { return reinterpret_cast<WordList*>(object); }

PyObject* words_new(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t operands;
  if (!PyArg_ParseTuple(args, "n", &operands)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  WordList* w = list(self);
  w->words = PyList_New(operands);
  for (Py_ssize_t i = 0; i < operands; i++) PyList_SET_ITEM(w->words, i, PyLong_FromLong(0));
  w->index = PyDict_New();
  w->patches = PyList_New(0);
  return self;
}

void words_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  WordList* w = list(self);
  Py_XDECREF(w->words);
  Py_XDECREF(w->index);
  Py_XDECREF(w->patches);
  type->tp_free(self);
  Py_DECREF(type);
}

int append(WordList* w, PyObject* name, PyObject* value) {
  PyObject* at = PyLong_FromSsize_t(PyList_GET_SIZE(w->words));
  int failed = PyDict_SetItem(w->index, name, at) || PyList_Append(w->words, value);
  Py_DECREF(at);
  return failed;
}

PyObject* u32(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !is_integer(args[1])) return PyErr_Format(PyExc_TypeError, "u32 takes a name and an integer");
  Number value = number_of(args[1]);
  if (PyErr_Occurred()) return nullptr;
  if (!holds(Instruction::lt, value, int64_t(1) << 32) || value.hint() < INT32_MIN) {
    return PyErr_Format(PyExc_OverflowError, "%lld (%U)", static_cast<long long>(value.hint()), args[0]);
  }
  if (append(list(self), args[0], args[1])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* f32(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "f32 takes a name and a number");
  double number = PyFloat_AsDouble(args[1]);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  auto single = static_cast<float>(number);  // beyond the range: infinite
  uint32_t bits;
  memcpy(&bits, &single, 4);
  PyObject* word = PyLong_FromUnsignedLong(bits);
  int failed = append(list(self), args[0], word);
  Py_DECREF(word);
  if (failed) return nullptr;
  Py_RETURN_NONE;
}

PyMemberDef members[] = {{"words", T_OBJECT_EX, offsetof(WordList, words), READONLY, nullptr},
                         {"index", T_OBJECT_EX, offsetof(WordList, index), READONLY, "place of a word by its name"},
                         {"patches", T_OBJECT_EX, offsetof(WordList, patches), READONLY, nullptr},
                         {}};
PyMethodDef methods[] = {{"u32", reinterpret_cast<PyCFunction>(u32), METH_FASTCALL,
                          "u32(name, value): appends an integer of 32 bits, with or without sign"},
                         {"f32", reinterpret_cast<PyCFunction>(f32), METH_FASTCALL, "f32(name, value): appends a float"},
                         {}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(words_new)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(words_dealloc)},
                       {Py_tp_members, members},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"torch_webgpu._C.WordList", sizeof(WordList), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
}  // namespace

void init_words_type(PyObject* module) { PyModule_AddObject(module, "WordList", PyType_FromSpec(&spec)); }

}  // namespace webgpu
