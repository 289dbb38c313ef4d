// The parts that need torch's Python headers, alone in their file because those are slow to compile.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>

#include "device.h"
#include "generator.h"

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

void rethrow_python(int gil_state) {
  python_error error;
  error.persist();
  PyGILState_Release(static_cast<PyGILState_STATE>(gil_state));
  throw error;
}

}  // namespace webgpu
