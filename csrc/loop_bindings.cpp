#include "guarded.h"
#include "loops.h"

namespace webgpu {

namespace {
constexpr const char* loop_name = "torch_webgpu.Loop";
using Owned = std::shared_ptr<Loop>;

Handle handle(unsigned long long address) { return reinterpret_cast<Handle>(address); }

Owned* owned(PyObject* capsule) { return static_cast<Owned*>(PyCapsule_GetPointer(capsule, loop_name)); }

bool pairs_of(PyObject* list, std::vector<std::pair<Handle, Handle>>& out) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    unsigned long long first, second;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "KK", &first, &second)) return false;
    out.emplace_back(handle(first), handle(second));
  }
  return true;
}
}  // namespace

PyObject* py_make_loop(PyObject*, PyObject* args) {
  const char* library;
  unsigned long long device, queue, instance;
  int dawn;
  PyObject* pipelines;
  LoopSetup setup;
  unsigned long long bytes, uniform_bytes;
  if (!PyArg_ParseTuple(args, "sKKKpO!IKKI", &library, &device, &queue, &instance, &dawn, &PyList_Type, &pipelines,
                        &setup.bindings, &bytes, &uniform_bytes, &setup.workgroups) ||
      !pairs_of(pipelines, setup.pipelines)) {
    return nullptr;
  }
  setup.library = library;
  setup.on = {handle(device), handle(queue), handle(instance), dawn != 0};
  setup.bytes = bytes;
  setup.uniform_bytes = uniform_bytes;
  Owned loop;
  PyObject* done = guarded([&] {
    TORCH_CHECK(!setup.pipelines.empty() && setup.bindings, "a loop needs a pipeline and a buffer");
    loop = make_loop(setup);
  });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyCapsule_New(new Owned(loop), loop_name, [](PyObject* capsule) { delete owned(capsule); });
}

PyObject* py_run_loop(PyObject*, PyObject* args) {
  PyObject* capsule;
  unsigned method, n;
  double delay;
  int timestamps;
  if (!PyArg_ParseTuple(args, "OIIdp", &capsule, &method, &n, &delay, &timestamps)) return nullptr;
  Owned* loop = owned(capsule);
  if (!loop) return nullptr;
  Sample sample;
  PyObject* done = guarded([&] {
    TORCH_CHECK(method < method_count, "there is no method ", method);
    sample = run_loop(**loop, static_cast<Method>(method), n, delay, timestamps);
  });
  if (!done) return nullptr;
  Py_DECREF(done);
  return Py_BuildValue("dddIK", sample.wall, sample.host, sample.gpu, sample.dropped,
                       static_cast<unsigned long long>(sample.step));
}

PyObject* py_run_phases(PyObject*, PyObject* args) {
  PyObject* capsule;
  unsigned n;
  if (!PyArg_ParseTuple(args, "OI", &capsule, &n)) return nullptr;
  Owned* loop = owned(capsule);
  if (!loop) return nullptr;
  std::vector<double> spent;
  PyObject* done = guarded([&] { spent = run_phases(**loop, n); });
  if (!done) return nullptr;
  Py_DECREF(done);
  PyObject* list = PyList_New(Py_ssize_t(spent.size()));
  for (size_t i = 0; i < spent.size(); i++) PyList_SET_ITEM(list, Py_ssize_t(i), PyFloat_FromDouble(spent[i]));
  return list;
}

PyObject* py_read_loop(PyObject*, PyObject* capsule) {
  Owned* loop = owned(capsule);
  if (!loop) return nullptr;
  std::string data;
  PyObject* done = guarded([&] { data = read_loop(**loop); });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyBytes_FromStringAndSize(data.data(), Py_ssize_t(data.size()));
}

PyObject* py_clock_cost(PyObject*, PyObject*) {
  double cost = 0;
  PyObject* done = guarded([&] { cost = clock_cost(); });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyFloat_FromDouble(cost);
}

}  // namespace webgpu
