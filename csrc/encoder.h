// Turns recorded commands into WebGPU calls, in order, on a thread of its own: encoding and submitting cost more than
// recording, and the thread that runs the model should not wait for them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "allocator.h"
#include "api.h"
#include "pass_timer.h"
#include "timeline.h"

namespace webgpu {

constexpr uint32_t uniform_slot = 256;  // minUniformBufferOffsetAlignment of the specification
constexpr uint32_t ring_slots = 1024;   // uniform slots a batch may use
constexpr uint64_t upload_capacity = 1 << 20;
constexpr uint32_t most_bindings = 16;

struct Pipeline {
  Handle pipeline, layout;
  uint32_t bindings;                  // storage buffers; the uniform follows them
  uint32_t uniform_slots;             // of 256 bytes
  const std::string* name = nullptr;  // for people; lives as long as the process
  bool operator==(const Pipeline&) const = default;
};

// What a binding covers.
struct Window {
  const Block* block;
  uint64_t offset, size;  // bytes
};

// A dispatch, or a copy where `pipeline` is null.
struct Command {
  Handle pipeline = nullptr, layout = nullptr;
  uint32_t bindings = 0, first_window = 0;
  uint32_t uniform_slots = 0, uniform_offset = 0;  // slots; bytes
  uint32_t groups[3] = {};
  Handle src = nullptr, dst = nullptr;  // a null source is the upload buffer
  uint64_t src_offset = 0, dst_offset = 0, size = 0;
  uint32_t launch = 0;  // its number in the running timeline
};

struct Batch {
  std::vector<Command> commands;
  std::vector<Window> windows;
  std::vector<uint32_t> words;  // uniform slots
  std::vector<char> uploads;
  void clear();
};

// Hands the batch over and leaves an empty one in its place. May wait when the encoder is far behind.
void submit_batch(Batch& batch);
// Encodes and submits the batch in this thread, after everything handed over before.
void submit_batch_now(Batch& batch);
// Waits until everything handed over is submitted.
void drain();
// Forgets all bind groups; they hold references to buffers. Drains first.
void drop_bind_groups();

// Forgets what was made with a lost device.
void forget_encoded();

// Whether passes are timed from now on, and what those since the last call took; waits for everything recorded.
PassTimes time_passes(bool on);

// Whether launches of a timeline are timed from now on, where the adapter can. Drains first.
void time_launches(bool on);
// Ends that, and fills in the times.
void finish_launches(std::vector<Launch>& launches);

struct EncoderStats {
  uint64_t submits, dispatches, bind_groups, bind_group_misses;
};
EncoderStats encoder_stats();

}  // namespace webgpu
