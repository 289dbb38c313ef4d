// Calls from Python into the core.
#pragma once
#include <Python.h>

#include <c10/util/Exception.h>
#include <string>

#include "device.h"

namespace webgpu {

// Runs `body` without the GIL and turns C++ exceptions into Python ones.
template <typename F>
PyObject* guarded(F body) {
  std::string message;
  PyObject* type = nullptr;
  PyThreadState* state = PyEval_SaveThread();
  try {
    body();
  } catch (const c10::IndexError& e) {
    type = PyExc_IndexError;
    message = e.what_without_backtrace();
  } catch (const c10::Error& e) {
    type = PyExc_RuntimeError;
    message = e.what_without_backtrace();
  } catch (const std::exception& e) {
    type = PyExc_RuntimeError;
    message = e.what();
    PyEval_RestoreThread(state);
    if (PyObject* named = python_type_of(e)) type = named;
    PyErr_SetString(type, message.c_str());
    return nullptr;
  }
  PyEval_RestoreThread(state);
  if (!type) Py_RETURN_NONE;
  PyErr_SetString(type, message.c_str());
  return nullptr;
}

}  // namespace webgpu
