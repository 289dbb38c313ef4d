#include "queue.h"

#include <c10/util/Exception.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "encoder.h"

namespace webgpu {

namespace {
const char* const asynchronous = "in a launch before this call (TORCH_WEBGPU_DEBUG=1 finds which)";
Batch batch;  // recorded and not yet handed to the encoder
uint32_t submit_interval = 64;
uint32_t held;  // number of HoldSubmits alive
uint64_t dispatches, readbacks, recorded;

// Small uploads: written to one buffer just before the submit whose commands copy them to their places.
constexpr uint64_t small_upload = 64 << 10;

Block* errors_block;
bool errors_expected;
std::unordered_map<uint32_t, std::pair<std::string, std::string>> error_table;  // class and message

struct Staging {
  Handle buffer;
  uint64_t size;
};
std::vector<Staging> staging_pool;
constexpr uint64_t staging_chunk = uint64_t(64) << 20;

void record(const Command& command) {
  if (C10_UNLIKELY(device_lost())) raise_errors("");
  batch.commands.push_back(command);
  recorded++;
  if (batch.commands.size() >= (held ? ring_slots : submit_interval)) flush();
}

void record_copy(Handle src, uint64_t src_offset, Handle dst, uint64_t dst_offset, uint64_t size) {
  Command command;
  command.src = src;
  command.src_offset = src_offset;
  command.dst = dst;
  command.dst_offset = dst_offset;
  command.size = size;
  record(command);
}

Staging take_staging(uint64_t bytes) {
  for (size_t i = 0; i < staging_pool.size(); i++) {
    if (staging_pool[i].size >= bytes) {
      Staging found = staging_pool[i];
      staging_pool.erase(staging_pool.begin() + i);
      return found;
    }
  }
  if (has_errors()) raise_errors(asynchronous);
  uint64_t size = std::max<uint64_t>(size_class(bytes), 4096);
  auto make = [&] { return create_buffer(usage::map_read | usage::copy_dst, size); };
  Handle buffer = make();
  static bool freeing = false;  // a wait takes a staging buffer itself
  if (!buffer && !freeing) {
    freeing = true;
    std::unique_ptr<bool, void (*)(bool*)> ends(&freeing, [](bool* flag) { *flag = false; });
    auto large = [](const Staging& kept) {
      if (kept.size > small_upload) api.buffer_release(kept.buffer);
      return kept.size > small_upload;
    };
    staging_pool.erase(std::remove_if(staging_pool.begin(), staging_pool.end(), large), staging_pool.end());
    empty_cache();
    for (int i = 0; i < 3 && !buffer; i++) {  // see allocate_block
      wait_idle();
      buffer = make();
    }
  }
  if (!buffer) {  // found out before anything that was recorded is lost
    raise_python("OutOfMemoryError",
                 "WebGPU out of memory: the device refused the staging buffer of " + std::to_string(size) +
                     " bytes that reading a tensor back needs. Free tensors, or read it in smaller pieces.");
  }
  return {buffer, size};
}

void give_staging(Staging staging) {
  constexpr size_t most_kept = 4;
  if (staging_pool.size() < most_kept) {
    staging_pool.push_back(staging);
  } else {
    api.buffer_release(staging.buffer);
  }
}

using MapStatus = std::atomic<uint32_t>;  // 0 until the library has answered

void on_mapped(uint32_t status, StringView, void* out, void*) {
  static_cast<MapStatus*>(out)->store(status ? status : UINT32_MAX);
}

// Submits everything, the commands that write to the staging buffer last.
void flush_into(const Staging& staging) {
  submit_batch_now(batch);
  if (has_errors()) {
    give_staging(staging);
    raise_errors(asynchronous);
  }
}

// A staging buffer on its way to the host.
struct Mapping {
  MapStatus* answer = nullptr;
  Future future{};
};

Mapping start_mapping(const Staging& staging, uint64_t bytes) {
  Mapping mapping{new MapStatus(0)};
  constexpr uint32_t wait_any_only = 1, allow_spontaneous = 3;
  MapCallbackInfo info{nullptr, device.dawn ? wait_any_only : allow_spontaneous, on_mapped, mapping.answer, nullptr};
  mapping.future = api.map_async(staging.buffer, 1, 0, bytes, info);
  return mapping;
}

// Lets the library answer, if it can without waiting.
void poll(const Mapping& mapping) {
  if (device.dawn) {
    FutureWaitInfo wait{mapping.future, 0};
    if (!*mapping.answer) api.wait_any(device.instance, 1, &wait, 0);
  } else {
    poll_device(false);
  }
}

// Waits for a mapping and copies it out. `all` waits for everything submitted, which is quickest where nothing newer is.
void copy_mapped(const Staging& staging, const Mapping& mapping, uint64_t bytes, const std::function<void(const char*)>& use,
                 bool all) {
  if (device.dawn) {
    FutureWaitInfo wait{mapping.future, 0};
    if (!*mapping.answer) api.wait_any(device.instance, 1, &wait, UINT64_MAX);
  } else {
    while (!*mapping.answer && !device_lost()) {
      poll_device(all);
      if (!all && !*mapping.answer) usleep(20);
    }
  }
  uint32_t status = *mapping.answer;
  if (status) delete mapping.answer;  // else a lost device may still write to it
  if (status != 1) {
    api.buffer_release(staging.buffer);
    raise_errors("reading a tensor back");
    raise_python("InternalError", "mapping a staging buffer failed with status " + std::to_string(status));
  }
  use(static_cast<const char*>(api.mapped_range(staging.buffer, 0, bytes)));
  api.unmap(staging.buffer);
  give_staging(staging);
}

void map_and_copy(const Staging& staging, uint64_t bytes, const std::function<void(const char*)>& use) {
  copy_mapped(staging, start_mapping(staging, bytes), bytes, use, true);
}

void raise_device_error(const uint32_t* words) {
  if (!device.computes) return;
  auto [class_name, message] = error_table[words[0]];
  int64_t value;
  memcpy(&value, words + 1, 8);
  auto put = [&, &message = message](const char* name, int64_t number) {
    auto at = message.find(name);
    if (at != std::string::npos) message.replace(at, strlen(name), std::to_string(number));
  };
  put("{value}", value);
  put("{size}", words[3]);
  uint32_t zero[error_words] = {};
  api.write_buffer(device.queue, errors_block->buffer, 0, zero, sizeof zero);
  if (class_name == "IndexError") TORCH_CHECK_INDEX(false, message);
  TORCH_CHECK(false, message);
}
}  // namespace

void record_dispatch(const Pipeline& pipeline, const Window* windows, const uint32_t* words, uint32_t count,
                     const uint32_t* groups) {
  int64_t begun = C10_UNLIKELY(timeline_on()) ? now_ns() : 0;
  size_t at = batch.words.size(), slots = pipeline.uniform_slots;
  if (at + slots * uniform_slot / 4 > ring_slots * uniform_slot / 4) {
    flush();
    at = 0;
  }
  batch.words.resize(at + slots * uniform_slot / 4);
  memcpy(batch.words.data() + at, words, count * 4);
  Command command;
  command.pipeline = pipeline.pipeline;
  command.layout = pipeline.layout;
  command.bindings = pipeline.bindings;
  command.first_window = batch.windows.size();
  command.uniform_slots = slots;
  command.uniform_offset = at * 4;
  memcpy(command.groups, groups, sizeof command.groups);
  batch.windows.insert(batch.windows.end(), windows, windows + pipeline.bindings);
  dispatches++;
  if (C10_UNLIKELY(begun)) command.launch = note_launch(pipeline, groups, begun);
  record(command);
}

void flush() {
  Lock lock(device_mutex());
  submit_batch(batch);
}

void forget_commands() {
  batch.clear();
  staging_pool.clear();
  if (errors_block) free_block(std::exchange(errors_block, nullptr));
  errors_expected = false;
}

HoldSubmits::HoldSubmits() { held++; }
HoldSubmits::~HoldSubmits() { held--; }
bool HoldSubmits::outermost() const { return held == 1; }

void hold_submits(bool on) {
  Lock lock(device_mutex());
  static std::unique_ptr<HoldSubmits> hold;
  if (on && !hold) hold = std::make_unique<HoldSubmits>();
  if (!on) hold.reset();
}

void wait_idle() {
  Lock lock(device_mutex());
  NotedWait wait("webgpu wait");
  uint32_t words[error_words];
  Staging staging = take_staging(sizeof words);
  record_copy(error_block().buffer, 0, staging.buffer, 0, sizeof words);
  flush_into(staging);
  map_and_copy(staging, sizeof words, [&](const char* data) { memcpy(words, data, sizeof words); });
  errors_expected = false;
  if (words[0]) raise_device_error(words);
}

void synchronize() {
  if (!device_ready()) return;
  wait_idle();
  raise_errors("synchronize");
}

void set_submit_interval(uint32_t launches) {
  Lock lock(device_mutex());
  submit_interval = std::min(std::max(launches, 1u), ring_slots);
}

uint64_t commands_recorded() {
  Lock lock(device_mutex());
  return recorded;
}

QueueStats queue_stats() {
  Lock lock(device_mutex());
  return {dispatches, readbacks};
}

namespace {
void record_upload(const Block& dst, uint64_t offset, const void* data, uint64_t bytes) {
  uint64_t span = (bytes + 3) & ~uint64_t(3);
  if (batch.uploads.size() + span > upload_capacity) flush();
  size_t at = batch.uploads.size();
  batch.uploads.resize(at + span);
  memcpy(batch.uploads.data() + at, data, bytes);
  record_copy(nullptr, at, dst.buffer, offset, span);
}
}  // namespace

void write_bytes(const Block& dst, uint64_t offset, const void* data, uint64_t bytes) {
  if (!bytes) return;
  Lock lock(device_mutex());
  dst.require();
  if (bytes <= small_upload) return record_upload(dst, offset, data, bytes);
  submit_batch_now(batch);  // a queue write runs before commands that are recorded but not submitted
  if (device_lost()) raise_errors("");
  const char* from = static_cast<const char*>(data);
  uint64_t whole = bytes & ~uint64_t(3), rest = bytes - whole;
  for (uint64_t done = 0; done < whole; done += staging_chunk) {
    api.write_buffer(device.queue, dst.buffer, offset + done, from + done, std::min(staging_chunk, whole - done));
    if (bytes > staging_chunk) wait_idle();  // else the library keeps every chunk's copy alive at once
  }
  if (rest) record_upload(dst, offset + whole, from + whole, rest);
}

void read_bytes(const Block& src, uint64_t offset, void* data, uint64_t bytes) {
  if (!bytes) return;
  Lock lock(device_mutex());
  src.require();
  NotedWait wait("webgpu wait");
  readbacks++;
  for (uint64_t done = 0; done < bytes;) {
    uint64_t at = offset + done, first = at & ~uint64_t(3), take = std::min(staging_chunk - 4, bytes - done);
    uint64_t span = ((at + take + 3) & ~uint64_t(3)) - first;
    bool check = errors_expected;
    Staging staging = take_staging(span + 16);
    record_copy(src.buffer, first, staging.buffer, 0, span);
    if (check) record_copy(error_block().buffer, 0, staging.buffer, span, 16);
    flush_into(staging);
    uint32_t words[error_words] = {};
    map_and_copy(staging, span + (check ? 16 : 0), [&](const char* mapped) {
      memcpy(static_cast<char*>(data) + done, mapped + (at - first), take);
      if (check) memcpy(words, mapped + span, sizeof words);
    });
    errors_expected = false;
    if (words[0]) raise_device_error(words);
    done += take;
  }
  if (has_errors()) raise_errors("reading a tensor back");
}

struct PendingRead {
  Staging staging;
  uint64_t skip, bytes, span;
  bool check;
  Mapping mapping;
  uint32_t generation = device_generation();
  uint64_t copied() const { return span + (check ? 16 : 0); }
};

PendingRead* begin_read(const Block& src, uint64_t offset, uint64_t bytes, bool check) {
  Lock lock(device_mutex());
  src.require();
  readbacks++;
  uint64_t first = offset & ~uint64_t(3), span = ((offset + bytes + 3) & ~uint64_t(3)) - first;
  auto* pending = new PendingRead{take_staging(span + 16), offset - first, bytes, span, check && errors_expected, {}};
  record_copy(src.buffer, first, pending->staging.buffer, 0, span);
  if (pending->check) record_copy(error_block().buffer, 0, pending->staging.buffer, span, 16);
  if (check) errors_expected = false;
  flush();
  return pending;
}

bool read_ready(PendingRead* pending) {
  Lock lock(device_mutex());
  if (device_lost() || pending->generation != device_generation()) return true;  // finish_read raises
  drain();
  if (!pending->mapping.answer) pending->mapping = start_mapping(pending->staging, pending->copied());
  poll(pending->mapping);
  return *pending->mapping.answer || has_errors();
}

namespace {
// Once submitted. A buffer that is being mapped cannot serve again.
void abandon(PendingRead& pending) {
  if (!pending.mapping.answer) return give_staging(pending.staging);
  api.buffer_release(pending.staging.buffer);  // the callback may still come: its answer is not freed
}
}  // namespace

void finish_read(PendingRead* owned, void* data) {
  std::unique_ptr<PendingRead> pending(owned);
  Lock lock(device_mutex());
  NotedWait wait("webgpu wait");
  if (pending->generation != device_generation()) raise_gone();
  drain();
  if (has_errors()) {
    abandon(*pending);
    raise_errors(asynchronous);
  }
  uint32_t words[error_words] = {};
  auto use = [&](const char* mapped) {
    memcpy(data, mapped + pending->skip, pending->bytes);
    if (pending->check) memcpy(words, mapped + pending->span, sizeof words);
  };
  if (!pending->mapping.answer) pending->mapping = start_mapping(pending->staging, pending->copied());
  copy_mapped(pending->staging, pending->mapping, pending->copied(), use, false);
  if (words[0]) raise_device_error(words);
}

void drop_read(PendingRead* owned) {
  std::unique_ptr<PendingRead> pending(owned);
  Lock lock(device_mutex());
  if (device_inherited() || pending->generation != device_generation()) return;  // the buffers are not ours, or gone
  if (pending->check) errors_expected = true;
  drain();  // the copy must be submitted before its buffer may go
  abandon(*pending);
}

void copy_blocks(const Block& src, uint64_t src_offset, const Block& dst, uint64_t dst_offset, uint64_t bytes) {
  if (!bytes) return;
  Lock lock(device_mutex());
  src.require();
  dst.require();
  record_copy(src.buffer, src_offset, dst.buffer, dst_offset, (bytes + 3) & ~uint64_t(3));
}

const Block& error_block() {
  if (!errors_block) {
    errors_block = allocate_block(error_words * 4);
    submit_batch_now(batch);  // the block may be a recycled one that recorded commands still write: zeros must come after
    uint32_t zero[error_words] = {};
    api.write_buffer(device.queue, errors_block->buffer, 0, zero, sizeof zero);
  }
  return *errors_block;
}

void expect_device_errors() { errors_expected = true; }

uint32_t register_device_error(const std::string& class_name, const std::string& message) {
  Lock lock(device_mutex());
  std::pair<std::string, std::string> error{class_name, message};
  uint32_t id = 2166136261;  // FNV-1a: the same in every process, since plans on disk hold ids
  for (unsigned char c : class_name + '\n' + message) id = (id ^ c) * 16777619;
  for (id &= INT32_MAX;; id = (id + 1) & INT32_MAX) {
    if (!id) continue;
    auto [found, inserted] = error_table.try_emplace(id, error);
    if (inserted || found->second == error) return id;
  }
}

}  // namespace webgpu
