// The canonical text of a spec and its parser.
#include <set>

#include "normjit/base/text.h"
#include "normjit/spec.h"
#include "normjit/spec/tables.h"

namespace normjit {
namespace {

constexpr std::string_view kPrefix = "layernorm";
constexpr std::string_view kForm =
    "layernorm/cols=N/IN[/out=T][/w=T]/eps=E[/w|/wb][/ACTIVATION][/scale=S][/stats] with types f16 bf16 f32 "
    "f64 and "
    "activations relu gelu gelu_tanh silu";

Error bad(std::string_view text, std::string_view why) {
  return {Code::BadSpecText, concat({"'", text, "' is not a spec: ", why, ". The form is ", kForm})};
}

// What is read so far; the dtypes have defaults that depend on each other, so they are settled last.
struct Parts {
  NormSpec spec;
  std::optional<DType> input, output, weight;
  std::set<std::string_view> seen;
};

Result<void> read_columns(std::string_view value, std::string_view text, Parts& parts) {
  std::vector<std::int64_t> shape;
  for (const std::string_view size : split(value, 'x')) {
    const auto read = number<std::int64_t>(size);
    if (!read) return bad(text, concat({"'", value, "' is not a size"}));
    shape.push_back(*read);
  }
  const auto columns = columns_of(shape);
  if (!columns) return columns.error();
  parts.spec.columns = *columns;
  return {};
}

Result<void> read_assignment(std::string_view key, std::string_view value, std::string_view text,
                             Parts& parts) {
  if (key == "cols" && value.find('x') != value.npos)
    return bad(text, "cols= takes one number; use shape= for several");
  if (key == "cols" || key == "shape") return read_columns(value, text, parts);
  if (key == "eps" || key == "scale") {
    const auto read = number<double>(value);
    if (!read) return bad(text, concat({"'", value, "' is not a number"}));
    (key == "eps" ? parts.spec.epsilon : parts.spec.scale) = *read;
    return {};
  }
  if (key == "out" || key == "w") {
    const DTypeRow* row = row_of(kDTypes, &DTypeRow::name, value);
    if (!row)
      return Error{Code::BadDType,
                   concat({"'", value, "' in '", text, "' is no dtype; use f16, bf16, f32 or f64"})};
    (key == "out" ? parts.output : parts.weight) = row->dtype;
    return {};
  }
  return bad(text, concat({"unknown field '", key, "='"}));
}

// The kind of a bare word, under which it may appear once; empty for an unknown word.
std::string_view read_word(std::string_view word, Parts& parts) {
  if (const DTypeRow* row = row_of(kDTypes, &DTypeRow::name, word)) {
    parts.input = row->dtype;
    return "input dtype";
  }
  if (const AffineRow* row = row_of(kAffines, &AffineRow::name, word); row && row->affine != Affine::none) {
    parts.spec.affine = row->affine;
    return "affine";
  }
  if (const ActivationRow* row = row_of(kActivations, &ActivationRow::name, word);
      row && row->activation != Activation::none) {
    parts.spec.activation = row->activation;
    return "activation";
  }
  if (word == "stats") {
    parts.spec.statistics = true;
    return "stats";
  }
  return "";
}

Result<void> read_field(std::string_view field, std::string_view text, Parts& parts) {
  std::string_view kind;
  if (const std::size_t equals = field.find('='); equals != field.npos) {
    const std::string_view key = field.substr(0, equals);
    if (auto read = read_assignment(key, field.substr(equals + 1), text, parts); !read) return read;
    kind = key == "shape" ? "cols" : key == "w" ? "weight dtype" : key;
  } else {
    kind = read_word(field, parts);
    if (kind.empty()) return bad(text, concat({"unknown field '", field, "'"}));
  }
  if (!parts.seen.insert(kind).second) return bad(text, concat({"the ", kind, " is given twice"}));
  return {};
}

}  // namespace

std::string to_text(const NormSpec& any) {
  const NormSpec spec = canonical(any);
  std::string text = concat({kPrefix, "/cols=", shortest(spec.columns), "/", name(spec.input)});
  if (spec.output != spec.input) text += concat({"/out=", name(spec.output)});
  if (spec.weight != spec.input) text += concat({"/w=", name(spec.weight)});
  text += "/eps=" + shortest(spec.epsilon);
  if (spec.affine != Affine::none) text += concat({"/", name(spec.affine)});
  if (spec.activation != Activation::none) text += concat({"/", name(spec.activation)});
  if (NormSpec plain = spec; plain.scale = 1, !(plain == spec)) text += "/scale=" + shortest(spec.scale);
  if (spec.statistics) text += "/stats";
  return text;
}

Result<NormSpec> parse_spec(std::string_view text) {
  const auto fields = split(text, '/');
  if (fields.front() != kPrefix) return bad(text, "it does not begin with 'layernorm/'");
  Parts parts;
  for (std::size_t i = 1; i < fields.size(); ++i)
    if (auto read = read_field(fields[i], text, parts); !read) return read.error();
  if (!parts.seen.contains("cols")) return bad(text, "it has neither cols= nor shape=");

  NormSpec& spec = parts.spec;
  spec.input = parts.input.value_or(DType::f32);
  spec.output = parts.output.value_or(spec.input);
  spec.weight = parts.weight.value_or(spec.input);
  if (parts.weight && spec.affine == Affine::none)
    return bad(text, "w= names the dtype of weights that it does not have");
  if (auto valid = validate(spec); !valid) return valid.error();
  return canonical(spec);
}

}  // namespace normjit
