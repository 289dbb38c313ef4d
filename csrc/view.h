// The native base of recipe.py's Tensor: shapes and strides of a tensor while a recipe is made.
#pragma once
#include <Python.h>
#include <structmember.h>

#include <ATen/core/Tensor.h>

#include "number.h"

namespace webgpu {

void init_view_type(PyObject* module);
void init_words_type(PyObject* module);

// The view of a call's device tensor; null without an error where its dtype has no entry (recipe.py raises then).
PyObject* argument_view(const at::Tensor& t, long ref, long alias, PyObject* sizes, PyObject* strides);

}  // namespace webgpu
