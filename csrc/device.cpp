#include <Python.h>

#include "device.h"

#include <c10/util/Exception.h>
#include <atomic>
#include <cstring>

namespace webgpu {

Device device;

namespace {
std::mutex error_mutex;
std::vector<DeviceError> errors;
std::atomic<bool> any_error{false};
std::atomic<bool> ready{false};

void add_error(uint32_t type, StringView message) {
  std::lock_guard<std::mutex> guard(error_mutex);
  constexpr size_t most_kept = 64;
  if (errors.size() < most_kept) {
    errors.push_back({type, message.data ? std::string(message.data, message.length == SIZE_MAX ? strlen(message.data)
                                                                                               : message.length)
                                         : std::string()});
  }
  any_error = true;
}
}  // namespace

std::recursive_mutex& device_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

void on_uncaptured_error(void* const*, uint32_t type, StringView message, void*, void*) { add_error(type, message); }

void on_device_lost(void* const*, uint32_t reason, StringView message, void*, void*) {
  constexpr uint32_t destroyed = 2;  // the user's own doing, also reported when the process ends
  if (reason != destroyed) add_error(6, message);
}

bool has_errors() { return any_error.load(std::memory_order_relaxed); }

std::vector<DeviceError> take_errors() {
  std::lock_guard<std::mutex> guard(error_mutex);
  any_error = false;
  return std::move(errors);
}

void raise_errors(const std::string& context) {
  if (!has_errors()) return;
  auto list = take_errors();
  if (list.empty()) return;
  const DeviceError* worst = &list[0];
  for (auto& e : list) {
    if (e.type == 6) worst = &e;
  }
  const char* kind = worst->type == 3   ? "OutOfMemoryError"
                     : worst->type == 6 ? "DeviceLostError"
                     : worst->type == 2 ? "ValidationError"
                                        : "InternalError";
  raise_python(kind, context.empty() ? worst->message : context + ": " + worst->message);
}

bool device_ready() { return ready.load(std::memory_order_acquire); }

void ensure_device() {
  if (device_ready()) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* module = PyImport_ImportModule("torch_webgpu.runtime");
  PyObject* result = module ? PyObject_CallMethod(module, "start", nullptr) : nullptr;
  Py_XDECREF(module);
  if (!result) rethrow_python(gil);
  Py_DECREF(result);
  PyGILState_Release(gil);
  TORCH_CHECK(device_ready(), "torch_webgpu.runtime.start() attached no device");
}

void attach_device(const std::string& library, const Device& handles) {
  Lock lock(device_mutex());
  load_api(library, handles.dawn);
  device = handles;
  ready.store(true, std::memory_order_release);
}

}  // namespace webgpu
