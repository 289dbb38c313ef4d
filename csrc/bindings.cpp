// The extension module torch_webgpu._C, in plain CPython API (pybind11 would double the build time).
#include <Python.h>

#include <torch/library.h>

#include "allocator.h"
#include "collectives.h"
#include "device.h"
#include "generator.h"
#include "guarded.h"
#include "loops.h"
#include "plan.h"
#include "privateuse1.h"
#include "queue.h"
#include "recipe.h"

namespace {
using namespace webgpu;

PyObject* py_attach(PyObject*, PyObject* args) {
  const char* library;
  unsigned long long handle, queue, instance, max_buffer, max_binding;
  const char* name;
  int dawn, debug, threaded, timestamps, computes;
  if (!PyArg_ParseTuple(args, "ssKKKpppppKK", &library, &name, &handle, &queue, &instance, &dawn, &debug, &threaded,
                        &timestamps, &computes, &max_buffer, &max_binding)) {
    return nullptr;
  }
  return guarded([&] {
    Device d;
    d.name = name;
    d.device = reinterpret_cast<Handle>(handle);
    d.queue = reinterpret_cast<Handle>(queue);
    d.instance = reinterpret_cast<Handle>(instance);
    d.dawn = dawn;
    d.debug = debug;
    d.threaded = threaded;
    d.timestamps = timestamps;
    d.computes = computes;
    d.limits = {max_buffer, max_binding};
    attach_device(library, d);
  });
}

PyObject* py_detach(PyObject*, PyObject*) {
  bool detached = false;
  PyObject* done = guarded([&] { detached = detach_device(); });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyBool_FromLong(detached);
}

PyObject* py_callbacks(PyObject*, PyObject*) {
  return Py_BuildValue("KK", reinterpret_cast<unsigned long long>(&on_uncaptured_error),
                       reinterpret_cast<unsigned long long>(&on_device_lost));
}

PyObject* py_take_errors(PyObject*, PyObject*) {
  auto errors = take_errors();
  PyObject* list = PyList_New(0);
  for (auto& e : errors) {
    PyObject* text = PyUnicode_DecodeUTF8(e.message.data(), Py_ssize_t(e.message.size()), "replace");
    PyObject* pair = Py_BuildValue("iN", int(e.type), text);
    if (pair) PyList_Append(list, pair);
    Py_XDECREF(pair);
  }
  return list;
}

PyObject* py_add_pipeline(PyObject*, PyObject* args) {
  unsigned long long pipeline, layout;
  unsigned bindings, slots;
  const char* name;
  if (!PyArg_ParseTuple(args, "KKIIs", &pipeline, &layout, &bindings, &slots, &name)) return nullptr;
  uint32_t id = 0;
  PyObject* done = guarded([&] {
    id = add_pipeline({reinterpret_cast<Handle>(pipeline), reinterpret_cast<Handle>(layout), bindings, slots}, name);
  });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyLong_FromUnsignedLong(id);
}

PyObject* py_set_miss_handler(PyObject*, PyObject* args) {
  PyObject *miss, *trace;
  if (!PyArg_ParseTuple(args, "OO", &miss, &trace)) return nullptr;
  set_miss_handler(miss, trace);
  Py_RETURN_NONE;
}

PyObject* py_verify_recipes(PyObject*, PyObject* on) {
  set_verifying(PyObject_IsTrue(on));
  Py_RETURN_NONE;
}

std::vector<std::unique_ptr<torch::Library>> libraries;

// register_op("aten", "add.Tensor"): the boxed kernel directly on one op.
PyObject* py_register_op(PyObject*, PyObject* args) {
  const char *space, *name;
  if (!PyArg_ParseTuple(args, "ss", &space, &name)) return nullptr;
  return guarded([&] {
    if (libraries.empty() || !libraries.back()) {
      libraries.emplace_back(
          new torch::Library(torch::Library::IMPL, space, c10::DispatchKey::PrivateUse1, __FILE__, __LINE__));
    }
    libraries.back()->impl(name, torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>());
  });
}

PyObject* py_has_schema(PyObject*, PyObject* args) {
  const char *name, *overload;
  if (!PyArg_ParseTuple(args, "ss", &name, &overload)) return nullptr;
  return PyBool_FromLong(c10::Dispatcher::singleton().findSchema({name, overload}).has_value());
}

PyObject* py_register_error(PyObject*, PyObject* args) {
  const char *class_name, *message;
  if (!PyArg_ParseTuple(args, "ss", &class_name, &message)) return nullptr;
  uint32_t id = 0;
  PyObject* done = guarded([&] { id = register_device_error(class_name, message); });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyLong_FromUnsignedLong(id);
}

PyObject* py_register_collectives(PyObject*, PyObject*) { return guarded(register_collectives); }

PyObject* py_synchronize(PyObject*, PyObject*) {
  return guarded([] { synchronize(); });
}
PyObject* py_flush(PyObject*, PyObject*) {
  return guarded([] { flush(); });
}
PyObject* py_empty_cache(PyObject*, PyObject*) {
  return guarded([] { empty_cache(); });
}
PyObject* py_clear_recipes(PyObject*, PyObject*) {
  return guarded([] { clear_recipes(); });
}
PyObject* py_reset_peak(PyObject*, PyObject*) {
  return guarded([] { reset_peak_memory_stats(); });
}
PyObject* py_reset_stats(PyObject*, PyObject*) {
  return guarded([] { reset_recipe_stats(); });
}
PyObject* py_profile(PyObject*, PyObject* on) {
  set_profiling(PyObject_IsTrue(on));
  Py_RETURN_NONE;
}
PyObject* py_submit_interval(PyObject*, PyObject* n) {
  auto launches = uint32_t(PyLong_AsUnsignedLong(n));
  return guarded([=] { set_submit_interval(launches); });
}

PyObject* py_fallbacks(PyObject*, PyObject*) {
  PyObject* dict = PyDict_New();
  for (auto& [name, count] : fallback_counts()) {
    PyObject* number = PyLong_FromUnsignedLongLong(count);
    PyDict_SetItemString(dict, name.c_str(), number);
    Py_DECREF(number);
  }
  return dict;
}

PyObject* py_default_generator(PyObject*, PyObject*) { return wrap_generator(default_generator()); }

PyObject* py_memory_stats(PyObject*, PyObject*) {
  MemoryStats s;
  PyObject* done = guarded([&] { s = memory_stats(); });
  if (!done) return nullptr;
  Py_DECREF(done);
  return Py_BuildValue("{sKsKsKsKsKsK}", "allocated", s.allocated, "reserved", s.reserved, "max_allocated", s.max_allocated,
                       "max_reserved", s.max_reserved, "buffers", s.blocks, "buffers_created", s.created);
}

PyObject* py_stats(PyObject*, PyObject*) {
  RecipeStats r;
  QueueStats q{};
  EncoderStats e{};
  PyObject* done = guarded([&] {
    r = recipe_stats();
    q = queue_stats();
    e = encoder_stats();
  });
  if (!done) return nullptr;
  Py_DECREF(done);
  return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsK}", "launches", r.launches, "misses", r.misses, "derived",
                       r.derived, "recipes", r.recipes, "bind_groups", e.bind_groups, "bind_group_misses",
                       e.bind_group_misses, "fallbacks", r.fallbacks, "dispatches", q.dispatches, "encoded", e.dispatches,
                       "submits", e.submits, "readbacks", q.readbacks, "key_ns", r.key_ns, "output_ns", r.output_ns,
                       "record_ns", r.record_ns, "stack_ns", r.stack_ns, "miss_ns", r.miss_ns);
}

PyObject* py_make_plans(PyObject*, PyObject* args) {
  const char* name;
  PyObject* miss;
  Py_ssize_t most = PY_SSIZE_T_MAX;
  if (!PyArg_ParseTuple(args, "sO|n", &name, &miss, &most)) return nullptr;
  return make_plans(name, miss, static_cast<size_t>(most));
}

PyObject* py_time_passes(PyObject*, PyObject* on) {
  bool timing = PyObject_IsTrue(on);
  PassTimes times;
  PyObject* done = guarded([&] {
    synchronize();
    times = time_passes(timing);
  });
  if (!done) return nullptr;
  Py_DECREF(done);
  return Py_BuildValue("dIII", times.gpu, times.passes, times.dropped, times.untimed);
}

PyObject* py_hold_submits(PyObject*, PyObject* on) {
  bool holding = PyObject_IsTrue(on);
  return guarded([=] { hold_submits(holding); });
}

PyObject* py_drain(PyObject*, PyObject*) {
  return guarded([] {
    flush();
    drain();
  });
}

PyMethodDef methods[] = {
    {"attach", py_attach, METH_VARARGS,
     "attach(library, device, queue, instance, dawn, debug, threaded, computes, max_buffer, max_binding)"},
    {"detach", py_detach, METH_NOARGS, "forgets a lost device; whether there was one"},
    {"callbacks", py_callbacks, METH_NOARGS, "addresses of the uncaptured-error and device-lost callbacks"},
    {"take_errors", py_take_errors, METH_NOARGS, "collected errors as [(type, message)]"},
    {"add_pipeline", py_add_pipeline, METH_VARARGS, "add_pipeline(pipeline, layout, bindings, uniform_slots, name) -> id"},
    {"set_miss_handler", py_set_miss_handler, METH_VARARGS,
     "set_miss_handler(miss, trace): the callables that make recipes"},
    {"verify_recipes", py_verify_recipes, METH_O, "compare every derived recipe with the one that Python makes"},
    {"register_op", py_register_op, METH_VARARGS, "register_op(namespace, name.overload)"},
    {"has_schema", py_has_schema, METH_VARARGS, "has_schema(name, overload)"},
    {"register_error", py_register_error, METH_VARARGS, "register_error(class, message) -> id written by kernels"},
    {"make_plans", py_make_plans, METH_VARARGS,
     "make_plans(name, miss, most=unbounded) -> capsule of a graph's plans, by signature"},
    {"run_plans", py_run_plans, METH_VARARGS, "run_plans(capsule, args, times) -> outputs of the last replay, or None"},
    {"begin_read", py_begin_read, METH_O, "begin_read(contiguous tensor) -> capsule; submits a copy and does not wait"},
    {"finish_read", py_finish_read, METH_O, "finish_read(capsule) -> bytes; waits for that copy alone; once for each"},
    {"make_loop", py_make_loop, METH_VARARGS,
     "make_loop(library, device, queue, instance, dawn, [(pipeline, layout)], bindings, bytes, uniform_bytes, workgroups)"},
    {"run_loop", py_run_loop, METH_VARARGS,
     "run_loop(loop, method, n, delay_ns, timestamps) -> (wall, host, gpu, dropped, step), in ns"},
    {"run_phases", py_run_phases, METH_VARARGS, "run_phases(loop, n) -> ns of each phase, summed"},
    {"read_loop", py_read_loop, METH_O, "read_loop(loop) -> bytes of the first buffer"},
    {"time_passes", py_time_passes, METH_O,
     "time_passes(on) -> (ns, passes, dropped, untimed) of those since the last call; the adapter needs timestamp queries"},
    {"hold_submits", py_hold_submits, METH_O, "whether what is recorded waits for `drain` or a full batch"},
    {"run_op", py_run_op, METH_VARARGS, "run_op(name, overload, args, n) -> ns of n calls without Python, on any device"},
    {"clock_cost", py_clock_cost, METH_NOARGS, "ns of one reading of the clock"},
    {"synchronize", py_synchronize, METH_NOARGS, ""},
    {"drain", py_drain, METH_NOARGS, "submits everything recorded"},
    {"flush", py_flush, METH_NOARGS, ""},
    {"empty_cache", py_empty_cache, METH_NOARGS, ""},
    {"clear_recipes", py_clear_recipes, METH_NOARGS, ""},
    {"reset_peak_memory_stats", py_reset_peak, METH_NOARGS, ""},
    {"reset_stats", py_reset_stats, METH_NOARGS, ""},
    {"profile", py_profile, METH_O, "count nanoseconds per stage"},
    {"set_submit_interval", py_submit_interval, METH_O, "launches per submit"},
    {"register_collectives", py_register_collectives, METH_NOARGS, "torch.distributed for the device's tensors; once"},
    {"fallbacks", py_fallbacks, METH_NOARGS, "{op: times it ran on the CPU}"},
    {"default_generator", py_default_generator, METH_NOARGS, "the device's generator as a torch.Generator"},
    {"memory_stats", py_memory_stats, METH_NOARGS, ""},
    {"stats", py_stats, METH_NOARGS, ""},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torch_webgpu._C", "The native core.", -1, methods};
}  // namespace

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  init_meta_type(module);
  register_hooks();
  return module;
}
