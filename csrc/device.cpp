#include <Python.h>

#include "device.h"

#include "abort.h"
#include "allocator.h"
#include "encoder.h"
#include "queue.h"
#include "recipe.h"

#include <c10/util/Exception.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>
#endif

namespace webgpu {

Device device;

namespace {
std::mutex error_mutex;
std::vector<DeviceError> errors;
std::atomic<bool> any_error{false};
std::atomic<bool> ready{false};
std::atomic<bool> lost{false};
std::atomic<bool> inherited{false};
std::atomic<uint32_t> generation{0};
std::vector<Handle> retired;  // lost devices, whose errors come too late
std::string why_lost;

std::string to_string(StringView text) {
  if (!text.data) return {};
  return {text.data, text.length == SIZE_MAX ? strlen(text.data) : text.length};
}

bool late(void* const* from) {
  std::lock_guard<std::mutex> guard(error_mutex);
  return from && std::find(retired.begin(), retired.end(), *from) != retired.end();
}

void add_error(uint32_t type, StringView message) {
  std::lock_guard<std::mutex> guard(error_mutex);
  constexpr size_t most_kept = 64;
  if (errors.size() < most_kept) {
    errors.push_back({type, to_string(message)});
  }
  any_error = true;
}

void lose(std::string why) {
  std::lock_guard<std::mutex> guard(error_mutex);
  if (lost) return;
  why_lost = std::move(why);
  lost = any_error = true;
}
}  // namespace

std::recursive_mutex& device_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

void on_uncaptured_error(void* const* from, uint32_t type, StringView message, void*, void*) {
  if (late(from)) return;
  add_error(type, message);
  // wgpu-native refuses commands some time before it reports the loss.
  if (type == 2 && to_string(message).find("device is lost") != std::string::npos) lose_device();
}

void on_device_lost(void* const* from, uint32_t, StringView message, void*, void*) {
  if (!late(from)) lose(to_string(message));
}

bool device_inherited() { return inherited.load(std::memory_order_relaxed); }

bool device_lost() { return lost.load(std::memory_order_relaxed); }

void lose_device() { lose("the WebGPU library lost it"); }

void poll_device(bool wait, const uint64_t* index) {
  if (!survives([&] { api.device_poll(device.device, wait, index); })) lose_device();
}

bool has_errors() { return any_error.load(std::memory_order_relaxed); }

std::vector<DeviceError> take_errors() {
  std::lock_guard<std::mutex> guard(error_mutex);
  std::vector<DeviceError> taken;
  taken.swap(errors);
  any_error = lost.load();
  if (lost) taken.push_back({6, why_lost});
  return taken;
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
  std::string text = context.empty() ? worst->message : context + ": " + worst->message;
  if (worst->type == 6 && !inherited) {
    text += " (the device is lost; torch.webgpu.reset() opens it anew, but tensors made before are gone)";
  }
  raise_python(kind, text);
}

bool device_ready() { return ready.load(std::memory_order_acquire); }

void ensure_device() {
  if (device_ready()) {
    if (C10_UNLIKELY(device_lost())) raise_errors("");
    return;
  }
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* module = PyImport_ImportModule("torch_webgpu.runtime");
  PyObject* result = module ? PyObject_CallMethod(module, "start", nullptr) : nullptr;
  Py_XDECREF(module);
  if (!result) rethrow_python(gil);
  Py_DECREF(result);
  PyGILState_Release(gil);
  TORCH_CHECK(device_ready(), "torch_webgpu.runtime.start() attached no device");
}

#ifndef _WIN32
// The libraries' threads, and whoever held the locks, do not exist in the child.
void after_fork() {
  new (&device_mutex()) std::recursive_mutex;
  new (&error_mutex) std::mutex;
  if (device_ready()) {
    inherited = true;
#ifdef __GLIBC__
    // At exit drivers join threads that only the parent has. The last registered handler runs first: it ends the process
    // when Python is done, before theirs.
    on_exit([](int status, void*) { fflush(nullptr), _exit(status); }, nullptr);
#endif
    lose(
        "a WebGPU device does not survive fork(); start workers with multiprocessing's \"spawn\" or \"forkserver\", or use "
        "the device only in the children");
  }
}
#endif

uint32_t device_generation() { return generation.load(std::memory_order_relaxed); }

void raise_gone() { raise_python("DeviceLostError", "this tensor was on a device that has been lost since; make it again"); }

bool detach_device() {
  Lock lock(device_mutex());
  if (!device_ready() || !device_lost()) return false;
  if (inherited) raise_errors("");
  forget_commands();
  forget_encoded();
  generation++;
  forget_blocks();
  clear_recipes();
  std::lock_guard<std::mutex> guard(error_mutex);
  retired.push_back(device.device);
  errors.clear();
  ready = lost = any_error = false;
  return true;
}

void attach_device(const std::string& library, const Device& handles) {
  Lock lock(device_mutex());
  load_api(library, handles.dawn);
  if (!handles.dawn) survive_aborts();
  device = handles;
  device.limits.max_buffer &= ~uint64_t(255);  // some adapters grant 2^31 - 1, not a whole number of words
#ifndef _WIN32
  static int once = pthread_atfork(nullptr, nullptr, after_fork);
  (void)once;
#endif
  ready.store(true, std::memory_order_release);
}

}  // namespace webgpu
