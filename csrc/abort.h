// A call that may end the process, survived.
//
// wgpu-native panics where a submit or a wait meets a lost device, in a function that must not unwind: it aborts. Only the
// handler of SIGABRT comes between, and by then the library holds none of its locks.
#pragma once
#include <csetjmp>

namespace webgpu {

extern thread_local sigjmp_buf* on_abort;

// Installs the handler before the one there is; later calls do nothing.
void survive_aborts();

// Whether `call` returned. It must own nothing: a jump leaves its frame without destructors.
template <typename F>
[[gnu::noinline]] bool survives(F call) {
  sigjmp_buf here;
  if (sigsetjmp(here, 0)) return false;
  on_abort = &here;
  call();
  on_abort = nullptr;
  return true;
}

}  // namespace webgpu
