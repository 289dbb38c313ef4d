#include "family.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>

namespace webgpu {

namespace {
constexpr size_t most_templates = 64;  // of a family; the one unused longest goes first
constexpr int most_in_vain = 16;       // traces in a row that helped no other call, until the family is left alone
constexpr size_t most_families = 16384;

struct Family {
  std::vector<uint64_t> words;
  std::vector<int64_t> last;   // numbers of the last call
  std::vector<bool> changing;  // which differed between two calls so far
  std::deque<Template> templates;
  int in_vain = 0;
  bool by_value = false;
};

std::unordered_map<uint64_t, std::vector<std::unique_ptr<Family>>> families;
size_t count;

Family* find_family(const FamilyKey& key) {
  auto found = families.find(hash_words(key.words.data(), key.words.size()));
  if (found == families.end()) return nullptr;
  for (auto& family : found->second) {
    if (std::equal(family->words.begin(), family->words.end(), key.words.begin(), key.words.end())) return family.get();
  }
  return nullptr;
}

bool agree(const Template& made, const FamilyKey& key) {
  for (size_t k = 0; k < key.numbers.size(); k++) {
    if (!made.symbolic[k] && made.numbers[k] != key.numbers[k]) return false;
  }
  return true;
}
}  // namespace

bool Template::general() const {
  std::vector<bool> pinned(numbers.size());
  for (auto& at : code) {
    if (at.op != Instruction::eq) continue;
    const Instruction &left = code[at.a], &right = code[at.b];
    if (left.op == Instruction::input && right.op == Instruction::constant) pinned[left.value] = true;
    if (right.op == Instruction::input && left.op == Instruction::constant) pinned[right.value] = true;
  }
  for (size_t k = 0; k < numbers.size(); k++) {
    if (symbolic[k] && !pinned[k]) return true;
  }
  return false;
}

void FamilyKey::add_values() {
  words.push_back(~uint64_t(0));
  words.append(values.begin(), values.end());
}

FamilyKey family_key(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args) {
  FamilyKey key;
  key.words.push_back(reinterpret_cast<uint64_t>(&op.schema()));
  for (auto& arg : args) key.value(arg);
  return key;
}

std::optional<Recipe> derive(const FamilyKey& key) {
  Family* family = find_family(key);
  if (!family) return std::nullopt;
  static std::vector<int64_t> values;  // under the device lock
  auto& templates = family->templates;
  for (size_t i = 0; i < templates.size(); i++) {
    if (!agree(templates[i], key) || !evaluate(templates[i].code, key.numbers.data(), values)) continue;
    if (i) std::rotate(templates.begin(), templates.begin() + i, templates.begin() + i + 1);
    family->in_vain = 0;
    Recipe recipe = templates.front().recipe;
    fill(recipe, templates.front().holes, values);
    return recipe;
  }
  return std::nullopt;
}

std::optional<std::vector<bool>> what_to_trace(const FamilyKey& key) {
  Family* family = find_family(key);
  if (!family) {
    if (count >= most_families) clear_families();
    auto made = std::make_unique<Family>();
    made->words.assign(key.words.begin(), key.words.end());
    made->last.assign(key.numbers.begin(), key.numbers.end());
    made->changing.resize(key.numbers.size());
    families[hash_words(key.words.data(), key.words.size())].push_back(std::move(made));
    count++;
    return std::nullopt;
  }
  for (size_t k = 0; k < key.numbers.size(); k++) {
    if (family->last[k] != key.numbers[k]) family->changing[k] = true;
    family->last[k] = key.numbers[k];
  }
  if (family->in_vain >= most_in_vain) return std::nullopt;
  family->in_vain++;
  return family->changing;
}

void store_template(const FamilyKey& key, Template made) {
  Family* family = find_family(key);
  if (!family || !made.general()) return;
  family->templates.push_front(std::move(made));
  if (family->templates.size() > most_templates) family->templates.pop_back();
}

bool depends_on_values(const FamilyKey& key) {
  Family* family = find_family(key);
  return family && family->by_value;
}

void note_values(const FamilyKey& key) {
  if (Family* family = find_family(key)) family->by_value = true;
}

void close_family(const FamilyKey& key) {
  if (Family* family = find_family(key)) family->in_vain = most_in_vain;
}

void clear_families() {
  families.clear();
  count = 0;
}

}  // namespace webgpu
