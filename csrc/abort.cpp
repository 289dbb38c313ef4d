#include "abort.h"

#include <csignal>
#include <pthread.h>
#include <utility>

namespace webgpu {

thread_local sigjmp_buf* on_abort = nullptr;

namespace {
struct sigaction before;

void handle(int signal, siginfo_t* info, void* context) {
  if (sigjmp_buf* to = std::exchange(on_abort, nullptr)) {
    sigset_t blocked;  // this signal, which a jump leaves blocked
    sigemptyset(&blocked);
    sigaddset(&blocked, signal);
    pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
    siglongjmp(*to, 1);
  }
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler == SIG_DFL) {
    sigaction(signal, &before, nullptr);
    raise(signal);
  } else if (before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
}
}  // namespace

void survive_aborts() {
  static int once = [] {
    struct sigaction ours{};
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGABRT, &ours, &before);
  }();
  (void)once;
}

}  // namespace webgpu
