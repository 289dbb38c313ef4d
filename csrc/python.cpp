// The parts that need torch's Python headers, alone in their file because those are slow to compile.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <chrono>
#include <memory>

#include "device.h"
#include "generator.h"
#include "plan.h"
#include "queue.h"

namespace webgpu {

namespace {
// Names a class of torch_webgpu.errors; looked up only where torch translates it, with the GIL held.
struct NamedError final : torch::PyTorchError {
  NamedError(const char* class_name, std::string message) : PyTorchError(std::move(message)), name(class_name) {}
  PyObject* python_type() override {
    PyObject* module = PyImport_ImportModule("torch_webgpu.errors");
    PyObject* type = module ? PyObject_GetAttrString(module, name) : nullptr;
    Py_XDECREF(module);
    PyErr_Clear();
    return type ? type : PyExc_RuntimeError;
  }
  const char* name;
};
}  // namespace

void raise_python(const char* class_name, const std::string& message) { throw NamedError(class_name, message); }

PyObject* python_type_of(const std::exception& error) {
  auto* known = dynamic_cast<const torch::PyTorchError*>(&error);
  return known ? const_cast<torch::PyTorchError*>(known)->python_type() : nullptr;
}

PyObject* wrap_generator(const at::Generator& generator) { return THPGenerator_Wrap(generator); }

namespace {
bool values_of(PyObject* list, std::vector<c10::IValue>& values) {
  values.reserve(PyList_GET_SIZE(list));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    PyObject* item = PyList_GET_ITEM(list, i);
    if (THPVariable_Check(item)) {
      values.emplace_back(THPVariable_Unpack(item));
    } else if (PyBool_Check(item)) {
      values.emplace_back(item == Py_True);
    } else if (PyFloat_Check(item)) {
      values.emplace_back(PyFloat_AS_DOUBLE(item));
    } else {
      values.emplace_back(int64_t(PyLong_AsLongLong(item)));
      if (PyErr_Occurred()) return false;
    }
  }
  return true;
}
}  // namespace

// HANDLE_TH_ERRORS turns exceptions into Python ones; it expects the GIL, which comes back as the guard leaves.
PyObject* py_run_plans(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *capsule, *list;
  unsigned long long times;
  if (!PyArg_ParseTuple(args, "OO!K", &capsule, &PyList_Type, &list, &times)) return nullptr;
  Plans* plans = plans_of(capsule);
  if (!plans) return nullptr;
  std::vector<c10::IValue> values;
  if (!values_of(list, values)) return nullptr;
  std::vector<at::Tensor> outputs;
  bool ran;
  {
    pybind11::gil_scoped_release unlocked;
    ran = run_plan(*plans, values, times, outputs);
  }
  if (!ran) Py_RETURN_NONE;
  PyObject* result = PyList_New(outputs.size());
  for (size_t i = 0; i < outputs.size(); i++) PyList_SET_ITEM(result, i, THPVariable_Wrap(outputs[i]));
  return result;
  END_HANDLE_TH_ERRORS
}

PyObject* py_run_op(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char *name, *overload;
  PyObject* list;
  unsigned long long n;
  if (!PyArg_ParseTuple(args, "ssO!K", &name, &overload, &PyList_Type, &list, &n)) return nullptr;
  std::vector<c10::IValue> values;
  if (!values_of(list, values)) return nullptr;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  std::chrono::nanoseconds spent;
  {
    pybind11::gil_scoped_release unlocked;
    c10::InferenceMode inference;
    auto start = std::chrono::steady_clock::now();
    for (unsigned long long i = 0; i < n; i++) {
      torch::jit::Stack stack(values.begin(), values.end());
      op.callBoxed(&stack);
    }
    spent = std::chrono::steady_clock::now() - start;
  }
  return PyLong_FromLongLong(spent.count());
  END_HANDLE_TH_ERRORS
}

namespace {
constexpr const char* read_name = "torch_webgpu.PendingRead";

struct OwnedRead {
  PendingRead* pending;
  uint64_t bytes;
};

void free_read(PyObject* capsule) {
  std::unique_ptr<OwnedRead> read(static_cast<OwnedRead*>(PyCapsule_GetPointer(capsule, read_name)));
  if (!read->pending) return;
  pybind11::gil_scoped_release unlocked;
  drop_read(read->pending);
}
}  // namespace

PyObject* py_begin_read(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(THPVariable_Check(tensor), "begin_read: expected a tensor");
  const at::Tensor& t = THPVariable_Unpack(tensor);
  TORCH_CHECK(t.device().is_privateuseone() && t.is_contiguous() && t.nbytes() > 0 && t.nbytes() <= (1u << 20),
              "begin_read: expected a contiguous webgpu tensor of 1 byte to 1 MiB, got ", t.sizes());
  auto* block = static_cast<Block*>(t.storage().mutable_data());
  OwnedRead* read = new OwnedRead{nullptr, t.nbytes()};
  {
    pybind11::gil_scoped_release unlocked;
    read->pending = begin_read(*block, t.storage_offset() * t.itemsize(), read->bytes);
  }
  return PyCapsule_New(read, read_name, free_read);
  END_HANDLE_TH_ERRORS
}

PyObject* py_finish_read(PyObject*, PyObject* capsule) {
  HANDLE_TH_ERRORS
  auto* read = static_cast<OwnedRead*>(PyCapsule_GetPointer(capsule, read_name));
  if (!read) return nullptr;
  TORCH_CHECK(read->pending, "finish_read: this read was finished before");
  std::string data(read->bytes, 0);
  {
    pybind11::gil_scoped_release unlocked;
    finish_read(std::exchange(read->pending, nullptr), data.data());
  }
  return PyBytes_FromStringAndSize(data.data(), data.size());
  END_HANDLE_TH_ERRORS
}

void rethrow_python(int gil_state) {
  python_error error;
  error.persist();
  PyGILState_Release(static_cast<PyGILState_STATE>(gil_state));
  throw error;
}

}  // namespace webgpu
