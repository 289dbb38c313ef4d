// The one device: its handles, limits, collected errors and the lock that guards every call into the library.
#pragma once
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "api.h"

struct _object;  // PyObject

namespace webgpu {

struct Limits {
  uint64_t max_buffer = 0;
  uint64_t max_binding = 0;
};

struct Device {
  std::string name;
  Handle device = nullptr, queue = nullptr, instance = nullptr;
  bool dawn = false;
  bool debug = false;
  bool threaded = true;     // whether the library may be called from several threads
  bool timestamps = false;  // whether passes can be timed
  bool computes = true;     // false on a driver that does nothing, whose memory means nothing
  Limits limits;
};

struct DeviceError {
  uint32_t type;  // 2 validation, 3 out of memory, 4 internal, 5 unknown, 6 device lost (the same in both libraries)
  std::string message;
};

extern Device device;

// Guards the device, caches and pools. Never held while the GIL is taken: Python runs only with it released.
using Lock = std::unique_lock<std::recursive_mutex>;
std::recursive_mutex& device_mutex();

// Creates the device through Python on first use. Must be called without the device lock.
void ensure_device();
bool device_ready();
void attach_device(const std::string& library, const Device& handles);
// Forgets a lost device and everything made with it, so that another can be attached. False where none is lost.
bool detach_device();
// Which of the devices of this process is meant, counted from 0: what was made with another one is gone.
uint32_t device_generation();
[[noreturn]] void raise_gone();

// C callbacks handed to the libraries: they only append to a list.
void on_uncaptured_error(void* const* device, uint32_t type, StringView message, void*, void*);
void on_device_lost(void* const* device, uint32_t reason, StringView message, void*, void*);

std::vector<DeviceError> take_errors();
bool has_errors();
// Once the device is lost every call raises, until it is detached; `take_errors` goes on naming the loss.
bool device_lost();
// What a call that ended in an abort means (see abort.h).
void lose_device();
// wgpu-native: lets it answer callbacks; `wait` for the submit with that index, else for all.
void poll_device(bool wait, const uint64_t* index = nullptr);
// In a child of fork(): the device is lost, and neither its library nor the encoder's state may be touched.
bool device_inherited();
// Throws the first collected error as a torch_webgpu exception; `context` names what was running.
void raise_errors(const std::string& context);

// Throws torch_webgpu.<class_name>(message); needs no GIL. `class_name` must be a literal.
[[noreturn]] void raise_python(const char* class_name, const std::string& message);
// Gives the GIL back and throws the Python exception that is set; `gil_state` is what PyGILState_Ensure returned.
[[noreturn]] void rethrow_python(int gil_state);

// The Python class of an exception thrown by raise_python, else null (GIL held).
_object* python_type_of(const std::exception&);

}  // namespace webgpu
