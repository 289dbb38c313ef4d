// Records launches and copies in order, and hands them in batches to the encoder (encoder.h).
#pragma once
#include <cstdint>
#include <string>

#include "allocator.h"
#include "api.h"
#include "encoder.h"

namespace webgpu {

struct QueueStats {
  uint64_t dispatches, readbacks;
};

constexpr uint32_t error_words = 4;  // error id, offending value (low, high), size it broke

// All of these take the device lock.
// Records one dispatch with its uniform words; submits when the batch is full.
void record_dispatch(const Pipeline& pipeline, const Window* windows, const uint32_t* words, uint32_t count,
                     const uint32_t* groups);
// Hands what is recorded to the encoder.
void flush();
// Forgets what was recorded for a lost device, and what was made with it.
void forget_commands();
// While one lives, a batch is handed over only when its uniform slots are used up, or by flush(). Needs the device lock.
struct HoldSubmits {
  HoldSubmits();
  ~HoldSubmits();
  bool outermost() const;
};

// The same from Python: plans that are replayed do not submit either.
void hold_submits(bool on);
// Flushes and waits until the GPU has done everything; raises collected errors and failed device-side checks.
void synchronize();
// The same without the errors of the library.
void wait_idle();
void set_submit_interval(uint32_t commands);
QueueStats queue_stats();
uint64_t commands_recorded();

// The offset must be a multiple of four; up to three bytes after the range are overwritten. Up to 64 KiB neither submit nor
// wait. `data` is free on return.
void write_bytes(const Block& dst, uint64_t offset, const void* data, uint64_t bytes);
// Any byte range.
void read_bytes(const Block& src, uint64_t offset, void* data, uint64_t bytes);
// The same in two steps: the copy is recorded and submitted now, and waited for later, while newer work goes on.
struct PendingRead;
// `check`: what kernels have reported by then comes with it.
PendingRead* begin_read(const Block& src, uint64_t offset, uint64_t bytes, bool check = true);
// Whether finish_read would not wait.
bool read_ready(PendingRead*);
// Once for each, one of them; frees it. What kernels reported meanwhile is raised by `finish_read`, or by a later wait.
void finish_read(PendingRead*, void* data);
void drop_read(PendingRead*);
// Offsets must be multiples of four; the size is rounded up to four.
void copy_blocks(const Block& src, uint64_t src_offset, const Block& dst, uint64_t dst_offset, uint64_t bytes);

// The buffer in which kernels report what they could not raise themselves (an index out of range, a division by zero).
const Block& error_block();
void expect_device_errors();
// Registers a message; returns the id kernels write. The id is stable for equal messages.
uint32_t register_device_error(const std::string& class_name, const std::string& message);

}  // namespace webgpu
