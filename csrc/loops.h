// The instrument's loops: ways to run n dispatches of one kernel on a device of their own, timed with nothing but WebGPU
// calls between the two readings of the clock.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "pass_timer.h"

struct _object;  // PyObject

namespace webgpu {

// The order is that of bench/loop.py.
enum class Method : uint32_t {
  waited,     // each: encoder, pass, submit, wait
  read_back,  // each: encoder, pass, copy, submit, map, read
  unwaited,   // each: encoder, pass, submit, timed one by one; one wait after them
  submits,    // the same, timed as a whole
  passes,     // one encoder and submit, a pass each
  one_pass,
};
constexpr uint32_t method_count = 6;

constexpr uint32_t phase_count = 9;  // encoder, begin pass, set pipeline, set bind group, dispatch, end pass, finish,
                                     // submit, release

struct LoopSetup {
  std::string library;
  Connection on;
  std::vector<std::pair<Handle, Handle>> pipelines;  // with their layouts; dispatches take them in turn
  uint32_t bindings;                                 // storage buffers; the first is written
  uint64_t bytes;                                    // of each
  uint64_t uniform_bytes;                            // of the uniform after them, with a dynamic offset; 0 for none
  uint32_t workgroups;
};

// Nanoseconds of n dispatches. `wall`: until the GPU has done them. `host`: until the calls returned. `gpu`: between the
// timestamps at the ends of passes, summed; negative differences, which the specification allows, are dropped and counted.
struct Sample {
  double wall = 0, host = 0, gpu = 0;
  uint32_t dropped = 0;
  uint64_t step = 0;  // what all timestamps are multiples of
};

struct Loop;
// Throws c10::Error where the library lacks a function.
std::shared_ptr<Loop> make_loop(const LoopSetup& setup);
// `delay`: nanoseconds the host is kept busy in each dispatch. `timestamps`: the device must have been made with the
// feature, and n is bounded by `most_timed_passes` where each dispatch has its pass. Throws where the GPU's answer cannot be
// read.
Sample run_loop(Loop& loop, Method method, uint32_t n, double delay, bool timestamps);
// Nanoseconds of each phase of `submits`, summed over n dispatches; each has one reading of the clock in it.
std::vector<double> run_phases(Loop& loop, uint32_t n);
// The first buffer.
std::string read_loop(Loop& loop);
// Nanoseconds that one reading of the clock costs.
double clock_cost();

// Methods of _C; bindings.cpp tells their arguments.
_object* py_make_loop(_object*, _object* args);
_object* py_run_loop(_object*, _object* args);
_object* py_run_phases(_object*, _object* args);
_object* py_read_loop(_object*, _object* loop);
_object* py_clock_cost(_object*, _object*);

}  // namespace webgpu
