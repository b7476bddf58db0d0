// Specs and their texts.
#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"

using namespace normjit::c_api;

normjit_status normjit_columns_of(const int64_t* shape, size_t rank, int64_t* columns, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (shape == nullptr && rank > 0) return is_null("shape", error);
    if (columns == nullptr) return is_null("columns", error);
    const auto product = normjit::columns_of({shape, rank});
    if (!product) return answer(product, error);
    *columns = *product;
    return NORMJIT_OK;
  });
}

normjit_status normjit_spec_parse(const char* text, normjit_spec* spec, char** error) {
  return guarded(error, [&]() -> normjit_status {
    if (text == nullptr) return is_null("text", error);
    if (spec == nullptr) return is_null("spec", error);
    const auto parsed = normjit::parse_spec(text);
    if (!parsed) return answer(parsed, error);
    if (!is_size(spec->struct_size)) return answer(struct_mistake("normjit_spec", spec), error);
    if (write(*parsed, *spec)) return NORMJIT_OK;
    return answer(normjit::Error{normjit::Code::BadArgument,
                                 "this spec needs a member that this program's normjit_spec does not have"},
                  error);
  });
}

normjit_status normjit_spec_text(const normjit_spec* spec, char** text, char** error) {
  return guarded(error, [&]() -> normjit_status {
    const auto given = spec_of(spec);
    if (!given) return answer(given, error);
    if (const auto valid = normjit::validate(*given); !valid) return answer(valid, error);
    return text == nullptr ? NORMJIT_OK : hand_over(normjit::to_text(*given), text, error);
  });
}
