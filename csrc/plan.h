// Compiled graphs: plans found by signature and replayed in one submit.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <string>
#include <vector>

namespace webgpu {

struct Plans;

// A capsule that holds the plans of one graph; `miss` makes the plan of a new signature (GIL held). It keeps
// `most` plans: beyond, a new one takes the place of the one used last the longest ago.
PyObject* make_plans(const std::string& name, PyObject* miss, size_t most);
Plans* plans_of(PyObject* capsule);
// Replays the plan `times` times; the outputs are those of the last. False where the signature has no plan. Without the GIL.
bool run_plan(Plans& plans, const std::vector<c10::IValue>& args, uint64_t times, std::vector<at::Tensor>& outputs);

// python.cpp
PyObject* py_run_plans(PyObject*, PyObject* args);    // run_plans(capsule, args, times)
PyObject* py_run_op(PyObject*, PyObject* args);       // run_op(name, overload, args, n)
PyObject* py_begin_read(PyObject*, PyObject* args);   // begin_read(tensor)
PyObject* py_finish_read(PyObject*, PyObject* args);  // finish_read(capsule)

}  // namespace webgpu
