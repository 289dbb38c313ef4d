/* What a program run by valgrind's callgrind says to it. */
#include <valgrind/callgrind.h>

void start_counting(void) {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
}

void stop_counting(void) {
  CALLGRIND_DUMP_STATS;
  CALLGRIND_STOP_INSTRUMENTATION;
}
