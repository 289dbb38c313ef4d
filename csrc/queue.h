// One open command encoder and compute pass; launches are appended and submitted in batches.
#pragma once
#include <cstdint>
#include <string>

#include "allocator.h"
#include "api.h"

namespace webgpu {

struct QueueStats {
  uint64_t dispatches = 0, submits = 0, readbacks = 0;
};

constexpr uint32_t uniform_slot = 256;  // minUniformBufferOffsetAlignment of the specification
constexpr uint32_t error_words = 4;     // error id, offending value (low, high), size it broke

// All of these take the device lock.
// The open compute pass, opened if need be, with the pipeline set.
Handle open_pass(Handle pipeline);
void flush();
// Flushes and waits until the GPU has done everything; raises collected errors and failed device-side checks.
void synchronize();
// Waits without raising.
void wait_idle();
void set_submit_interval(uint32_t launches);
QueueStats queue_stats();

// Appends `words` (up to `slots` uniform slots of 256 bytes) to the uniform ring; returns the byte offset for this launch.
uint32_t push_uniform(const uint32_t* words, uint32_t count, uint32_t slots);
Handle uniform_buffer();
// Counts a recorded dispatch and submits when the batch is full.
void count_dispatch();

// The offset must be a multiple of four; up to three bytes after the range are overwritten. Up to 64 KiB neither submit nor
// wait. `data` is free on return.
void write_bytes(const Block& dst, uint64_t offset, const void* data, uint64_t bytes);
// Any byte range.
void read_bytes(const Block& src, uint64_t offset, void* data, uint64_t bytes);
// Offsets must be multiples of four; the size is rounded up to four.
void copy_blocks(const Block& src, uint64_t src_offset, const Block& dst, uint64_t dst_offset, uint64_t bytes);

// The buffer in which kernels report what they could not raise themselves (an index out of range, a division by zero).
const Block& error_block();
void expect_device_errors();
// Registers a message; returns the id kernels write. The id is stable for equal messages.
uint32_t register_device_error(const std::string& class_name, const std::string& message);

}  // namespace webgpu
