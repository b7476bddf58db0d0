// SPDX-License-Identifier: Apache-2.0
// The canonical text of a spec and its parser.
#include <array>
#include <optional>

#include "normjit/base/text.h"
#include "normjit/spec/fields.h"

namespace normjit {
namespace {

// ---- The grammar ----

// "/key=value", "/value", or "/key" of a switch; of a part its key, and the value that is no switch.
template <class T, class HasMeaning>
std::string item(const Field<T, HasMeaning>& field, std::string_view value) {
  if constexpr (std::is_same_v<T, bool>) return concat({field.is_part() ? "" : "/", field.key});
  if (field.is_part()) return concat({field.key, value});
  return concat({"/", field.key, field.key.empty() ? "" : "=", value});
}

// The values that a field may have in a text: "f16|bf16|f32|f64".
template <class T, class HasMeaning>
std::string values_of(const Field<T, HasMeaning>& field) {
  if constexpr (std::is_enum_v<T>)
    return names_of<T>("|", /*first=*/field.always || std::is_same_v<T, DType> ? 0 : 1, field.choices());
  else
    return std::is_same_v<T, double> ? "X" : "N";
}

std::string form() {
  std::string all;
  each_field([&](const auto& field) {
    const std::string one = item(field, values_of(field));
    all += field.always ? one : concat({"[", one, "]"});
  });
  return all.substr(1);
}

Error bad(std::string_view text, std::string_view why) {
  return {Code::BadSpecText, concat({"'", text, "' is not a spec: ", why, ". The form is ", form()})};
}

// ---- Reading ----

// The fields read so far. Defaults depend on the input, so they are set last.
struct Parts {
  NormSpec spec;
  std::array<bool, kFieldCount> seen{};
};

template <class Enum>
std::optional<Enum> named(std::string_view word) {
  for (const auto& row : set_of(Enum{}))
    if (row.name == word) return row.value;
  return {};
}

// Reads the value of a field. For an enumeration, `name` and `mistake` describe a value that is not in the
// set, whose first `choices` it may have.
Result<void> read(std::string_view value, std::string_view text, std::string_view, Code, std::size_t,
                  std::int64_t& columns) {
  std::vector<std::int64_t> shape;
  for (const std::string_view size : split(value, 'x')) {
    const auto one = number<std::int64_t>(size);
    if (!one) return bad(text, concat({"'", value, "' is not a size"}));
    shape.push_back(*one);
  }
  const auto product = columns_of(shape);
  if (!product) return product.error();
  columns = *product;
  return {};
}
Result<void> read(std::string_view value, std::string_view text, std::string_view, Code, std::size_t,
                  double& to) {
  const auto one = number<double>(value);
  if (!one) return bad(text, concat({"'", value, "' is not a number"}));
  to = *one;
  return {};
}
template <class Enum>
Result<void> read(std::string_view value, std::string_view text, std::string_view name, Code mistake,
                  std::size_t choices, Enum& to) {
  const auto one = named<Enum>(value);
  if (!one) {
    const std::string why = concat({"no ", name, "; it must be one of ", names_of<Enum>(", ", 0, choices)});
    if (mistake == Code::BadArgument) return bad(text, concat({"'", value, "' is ", why}));
    return Error{mistake, concat({"'", value, "' in '", text, "' is ", why})};
  }
  to = *one;
  return {};
}

// Writes `word`, which stands alone, to the spec if it belongs to this field. False if it does not.
template <class T, class HasMeaning>
bool read_word(const Field<T, HasMeaning>& field, std::string_view word, NormSpec& spec) {
  if constexpr (std::is_same_v<T, bool>) {
    if (word != field.key) return false;
    spec.*field.member = true;
    return true;
  } else if constexpr (std::is_enum_v<T>) {
    if (field.is_part() && !word.starts_with(field.key)) return false;
    const auto value = field.key.empty() ? named<T>(word)
                       : field.is_part() ? named<T>(word.substr(field.key.size()))
                                         : std::nullopt;
    if (!value || (!field.always && *value == field.default_for(spec))) return false;
    spec.*field.member = *value;
    return true;
  } else {
    return false;
  }
}

// Whether its value follows "=".
template <class T, class HasMeaning>
constexpr bool takes_value(const Field<T, HasMeaning>& field) {
  return !field.is_part() && !std::is_same_v<T, bool>;
}

// Reads a part of a text if it belongs to this field: ok or what is wrong with it. Nothing if it does not.
template <class T, class HasMeaning>
std::optional<Result<void>> read_if(const Field<T, HasMeaning>& field, std::string_view part,
                                    std::string_view text, NormSpec& spec) {
  const std::size_t equals = part.find('=');
  if (equals == part.npos) {
    if (!read_word(field, part, spec)) return {};
    return Result<void>();
  }
  if constexpr (std::is_same_v<T, bool>) {
    return {};
  } else {
    const std::string_view key = part.substr(0, equals), value = part.substr(equals + 1);
    const bool is_shape = std::is_same_v<T, std::int64_t> && key == "shape";
    if (field.key.empty() || (key != field.key && !is_shape)) return {};
    if (!is_shape && std::is_same_v<T, std::int64_t> && value.find('x') != value.npos)
      return bad(text, concat({key, "= takes one number; use shape= for several"}));
    return read(value, text, field.name, field.mistake, field.choices(), spec.*field.member);
  }
}

// The number of the field to which `part` belongs, once it has been read; kFieldCount if there is none. Of
// the fields from number `first` on, and only of those that are parts, or are none.
Result<std::size_t> read_field(std::string_view part, std::string_view text, std::size_t first,
                               bool parts_only, Parts& parts) {
  std::optional<Result<void>> outcome;
  std::size_t i = 0, found = kFieldCount;
  each_field([&](const auto& field) {
    const std::size_t own = i++;
    if (outcome || own < first || field.is_part() != parts_only) return;
    if (!(outcome = read_if(field, part, text, parts.spec))) return;
    found = own;
    if (*outcome && std::exchange(parts.seen[own], true))
      outcome = bad(text, concat({field.name, " is given twice"}));
  });
  if (outcome && !*outcome) return outcome->error();
  return found;
}

// The field behind which a part stands.
std::size_t field_before(std::size_t part) {
  std::size_t i = 0, before = 0;
  each_field([&](const auto& field) {
    if (i < part && !field.is_part()) before = i;
    ++i;
  });
  return before;
}

// The switch at the end of a word. Empty if it has none.
std::string_view switch_at_end(std::string_view word) {
  std::string_view key;
  each_field([&](const auto& field) {
    if (field.is_part() && key.empty() && word.size() > field.key.size() && word.ends_with(field.key))
      key = field.key;
  });
  return key;
}

// A field, and the parts behind it: "w", "eps=1e-6", "wb1:rows".
Result<void> read_part(std::string_view part, std::string_view text, Parts& parts) {
  std::string_view word = part;
  std::vector<std::string_view> behind;  // the last first
  const auto cut = [&](std::string_view last) {
    behind.push_back(last);
    word.remove_suffix(last.size());
  };
  while (word.rfind(':') + 1 > 1) cut(word.substr(word.rfind(':')));
  for (;;) {
    const auto found = read_field(word, text, 0, /*parts_only=*/false, parts);
    if (!found) return found.error();
    if (std::size_t last = *found; last < kFieldCount) {
      for (; !behind.empty(); behind.pop_back()) {
        const auto own = read_field(behind.back(), text, last + 1, /*parts_only=*/true, parts);
        if (!own) return own.error();
        if (*own == kFieldCount || field_before(*own) != *found)
          return bad(text, concat({"'", behind.back(), "' does not belong behind '", word, "'"}));
        last = *own;
      }
      return {};
    }
    const std::string_view last = switch_at_end(word);
    if (last.empty()) break;
    cut(last);
  }
  const std::size_t equals = part.find('=');
  return bad(text,
             concat({"unknown field '", part.substr(0, equals == part.npos ? equals : equals + 1), "'"}));
}

}  // namespace

std::string to_text(const NormSpec& any) {
  const NormSpec spec = canonical(any);
  std::string text;
  each_field([&](const auto& field) {
    const auto value = spec.*field.member;
    if (field.always || word_of(value) != word_of(field.default_for(spec)))
      text += item(field, text_of(value));
  });
  return text.substr(1);
}

Result<NormSpec> parse_spec(std::string_view text) {
  const auto words = split(text, '/');
  const std::string_view norm = words.front();
  if (!named<Norm>(norm.substr(0, norm.size() - switch_at_end(norm).size())))
    return bad(text, concat({"it does not begin with '", names_of<Norm>("/' or '"), "/'"}));
  Parts parts;
  for (const std::string_view part : words)
    if (auto read = read_part(part, text, parts); !read) return read.error();

  Result<void> sound;
  std::size_t i = 0;
  each_field([&](const auto& field) {
    NormSpec& spec = parts.spec;
    const bool seen = parts.seen[i++];
    if (!seen) spec.*field.member = field.default_for(spec);
    if (!sound) return;
    if (!seen && field.key == "cols") sound = bad(text, "it has neither cols= nor shape=");
    if (seen && !field.has_meaning(spec))
      sound =
          bad(text, concat({field.key, takes_value(field) ? "=" : "", " describes what it does not have"}));
  });
  if (sound) sound = validate(parts.spec);
  if (!sound) return sound.error();
  return canonical(parts.spec);
}

}  // namespace normjit
