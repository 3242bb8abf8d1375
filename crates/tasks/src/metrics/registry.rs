//! All metrics: each has a variant of [`Metric`] and an entry in [`RULES`].
//!
//! To add a metric, write a function in the file of its family, and add a variant at the end of the enum and an entry at the end of the
//! table.

use serde::{Deserialize, Serialize};

use super::{
    aime, chinese, classification, code_sim, infinitebench, lm_eval, loogle, numbers, qa_f1, rouge, rouge_sum,
    string_match, zeroscrolls,
};

/// How a prediction is scored; names are those of the command line (`--metric`) and of task files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Metric {
    /// RULER: share of the references that are in the prediction, ignoring case.
    StringMatchAll,
    /// RULER: 1 if any reference is in the prediction, ignoring case.
    StringMatchPart,
    /// SQuAD: 1 if the prediction equals a reference after both are normalised.
    ExactMatch,
    /// LongBench `qa_f1_score`: F1 of the bags of normalised words.
    QaF1,
    /// LongBench `qa_f1_zh_score`: the same of the words of Chinese text.
    QaF1Zh,
    /// LongBench `rouge_score`: F of the summary-level ROUGE-L of the Python package `rouge` 1.0.1.
    RougeL,
    /// LongBench `rouge_zh_score`: the same of the words of Chinese text.
    RougeLZh,
    /// F of ROUGE-1 of the same package.
    Rouge1,
    /// F of ROUGE-2 of the same package.
    Rouge2,
    /// LongBench `classification_score`: 1 over the number of class names left in the prediction.
    Classification,
    /// LongBench `retrieval_score`: share of the numbers in the prediction that name the right paragraph.
    Retrieval,
    /// LongBench `retrieval_zh_score`: the same with the Chinese word for paragraph.
    RetrievalZh,
    /// LongBench `count_score`: share of the numbers in the prediction that are the right one.
    Count,
    /// LongBench `code_sim_score`: edit similarity of the first line of code.
    CodeSim,
    /// Passkey (landmark attention, Quest): 1 if the first number in the prediction is the reference.
    FirstNumber,
    /// LongEval lines: 1 if the last number in the prediction is the reference.
    LastNumber,
    /// HiP's passkey: share of the reference's digits that equal the prediction's digit at the same position.
    DigitMatch,
    /// lm-eval's GSM8K, `strict-match`: 1 if the number after "The answer is" is the reference.
    Gsm8kStrict,
    /// lm-eval's GSM8K, `flexible-extract`: 1 if the last number is the reference.
    Gsm8kFlexible,
    /// lm-eval's CoQA: F1 of the first line, mean over leaving out each of several answers.
    CoqaF1,
    /// As `coqa_f1`, with exact match instead of F1.
    CoqaEm,
    /// LongBench `code_sim_score` if `python-Levenshtein` is installed.
    CodeSimLevenshtein,
    /// lm-eval's GSM8K with training rows as examples, `strict-match`: 1 if the number after `####` is the reference.
    Gsm8kHashes,
    /// LongBench v2: 1 if the letter after "The correct answer is" is the reference.
    CorrectLetter,
    /// InfiniteBench `kv_retrieval`: 1 if the reference is a word of the prediction.
    Word,
    /// InfiniteBench `longdialogue_qa_eng`: 1 if the reference, in capitals, is a word of the prediction.
    Name,
    /// InfiniteBench `passkey`, `number_string`: 1 if the first run of digits equals the reference as text.
    FirstDigits,
    /// InfiniteBench `code_run`: 1 if the last word is the number.
    LastWordNumber,
    /// InfiniteBench `math_find`: 1 if the first number has the value of the reference.
    FirstValue,
    /// InfiniteBench `math_calc`: share of the reference's numbers before the first mistake.
    LeadingNumbers,
    /// InfiniteBench `longbook_choice_eng`: 1 if the prediction gives the letter or the text of the option; the references are both.
    Choice,
    /// InfiniteBench `code_debug`: the same of the names of functions.
    FunctionChoice,
    /// InfiniteBench `longbook_qa_chn`: F1 of the bags of characters.
    QaF1ZhCharacters,
    /// InfiniteBench `longbook_sum_eng`: `rougeLsum` of the Python package `rouge_score`.
    RougeLSum,
    /// SCBench `scbench_kv`: 1 if the reference is in the prediction.
    Contains,
    /// SCBench `scbench_qa_eng`: the same whatever the case.
    ContainsInCapitals,
    /// SCBench `scbench_vt`: share of the references in the prediction, ignoring case, in whole percent.
    ContainsAllPercent,
    /// lm-eval's MMLU with chain of thought, `get-answer`: 1 if the text after "answer is" is the reference.
    AnswerIs,
    /// lm-eval's AIME: 1 if the boxed text, or else that between dollar signs, or else all, equals the reference after LaTeX is normalised.
    Aime,
    /// ZeroSCROLLS `f1`: F1 of the bags of normalised words, written in ASCII.
    QaF1Ascii,
    /// ZeroSCROLLS `accuracy`: 1 if the first of the letters A to D that is a word of its own is the reference's.
    FirstLetter,
    /// ZeroSCROLLS `exp_similarity`: 1 for equal percentages, halved for each ten points between them.
    PercentSimilarity,
    /// ZeroSCROLLS `concordance_index`: share of the pairs in the right order.
    OrderConcordance,
    /// F of ROUGE-1 of the Python package `rouge_score`.
    RougeScore1,
    /// F of ROUGE-2 of the same package.
    RougeScore2,
    /// F of ROUGE-L of the same package.
    RougeScoreL,
    /// ZeroSCROLLS' summaries: geometric mean of the three, here of an example, there of their means.
    RougeScoreMean,
    /// LooGLE: recall of ROUGE-1 of the package `rouge`.
    Rouge1Recall,
    /// LooGLE: recall of ROUGE-2 of the same package.
    Rouge2Recall,
    /// LooGLE: recall of ROUGE-L of the same package.
    RougeLRecall,
    /// LooGLE: BLEU of words, as NLTK computes it.
    Bleu1,
    /// LooGLE: BLEU of runs of four words, as NLTK computes it.
    Bleu4,
    /// LooGLE `get_exact_match`: share of the masked names that the predicted Python dictionary has exactly.
    ClozeExact,
    /// LooGLE `get_partial_match`: the same of names of which it has a word.
    ClozePartial,
}

pub(super) type Scorer = fn(prediction: &str, references: &[String], all_classes: &[String]) -> f64;

/// The entry of a metric.
pub(super) struct Rule {
    pub metric: Metric,
    pub name: &'static str,
    pub about: &'static str,
    pub score: Scorer,
    pub postprocess: fn(&str) -> String,
    pub needs_classes: bool,
    /// Whether the metric compares anything in a reference that is not blank.
    pub compares: fn(&str) -> bool,
    /// Whether an empty prediction matches a reference in which the metric compares nothing.
    pub nothing_is_right: bool,
}

const fn rule(metric: Metric, name: &'static str, about: &'static str, score: Scorer) -> Rule {
    Rule {
        metric,
        name,
        about,
        score,
        postprocess: unchanged,
        needs_classes: false,
        compares: anything,
        nothing_is_right: false,
    }
}

impl Rule {
    /// The same entry, for a metric that compares nothing in the references for which `compares` is false.
    const fn comparing(self, compares: fn(&str) -> bool) -> Self {
        Self { compares, ..self }
    }

    /// The same entry, for a metric by which an empty prediction matches such a reference.
    const fn or_nothing(self) -> Self {
        Self { nothing_is_right: true, ..self }
    }
}

fn anything(_: &str) -> bool {
    true
}

/// The entry of each metric, indexed by the discriminants of the enum.
pub(super) static RULES: &[Rule] = &[
    Rule {
        postprocess: string_match::postprocess,
        ..rule(
            Metric::StringMatchAll,
            "string_match_all",
            "RULER: share of the references that are in the prediction, ignoring case",
            |p, r, _| string_match::all(p, r),
        ).comparing(string_match::compares)
    },
    Rule {
        postprocess: string_match::postprocess,
        ..rule(
            Metric::StringMatchPart,
            "string_match_part",
            "RULER: 1 if any reference is in the prediction, ignoring case",
            |p, r, _| string_match::part(p, r),
        ).comparing(string_match::compares)
    },
    rule(
        Metric::ExactMatch,
        "exact_match",
        "SQuAD: 1 if the prediction equals a reference after both are normalised",
        |p, r, _| best(r, |r| qa_f1::exact_match(p, r)),
    ),
    rule(Metric::QaF1, "qa_f1", "LongBench `qa_f1_score`: F1 of the bags of normalised words", |p, r, _| {
        best(r, |r| qa_f1::qa_f1(p, r))
    }).comparing(qa_f1::compares),
    rule(
        Metric::QaF1Zh,
        "qa_f1_zh",
        "LongBench `qa_f1_zh_score`: F1 of the bags of words of Chinese text",
        |p, r, _| best(r, |r| chinese::qa_f1_zh(p, r)),
    ).comparing(chinese::compares_words),
    rule(
        Metric::RougeL,
        "rouge_l",
        "LongBench `rouge_score`: F of the summary-level ROUGE-L of the Python package `rouge` 1.0.1",
        |p, r, _| best(r, |r| rouge::rouge_l(p, r)),
    ).comparing(rouge::compares_words),
    rule(
        Metric::RougeLZh,
        "rouge_l_zh",
        "LongBench `rouge_zh_score`: F of ROUGE-L of the words of Chinese text",
        |p, r, _| best(r, |r| chinese::rouge_l_zh(p, r)),
    ).comparing(rouge::compares_words),
    rule(Metric::Rouge1, "rouge_1", "F of ROUGE-1 of the Python package `rouge` 1.0.1", |p, r, _| {
        best(r, |r| rouge::rouge_n(1, p, r))
    }).comparing(rouge::compares_words),
    rule(Metric::Rouge2, "rouge_2", "F of ROUGE-2 of the Python package `rouge` 1.0.1", |p, r, _| {
        best(r, |r| rouge::rouge_n(2, p, r))
    }).comparing(rouge::compares_pairs),
    Rule {
        needs_classes: true,
        ..rule(
            Metric::Classification,
            "classification",
            "LongBench `classification_score`: 1 over the number of class names left in the prediction",
            |p, r, classes| best(r, |r| classification::classification(p, r, classes)),
        )
    },
    rule(
        Metric::Retrieval,
        "retrieval",
        "LongBench `retrieval_score`: share of the numbers in the prediction that name the right paragraph",
        |p, r, _| best(r, |r| numbers::retrieval("Paragraph ", p, r)),
    ).comparing(|r| numbers::names_paragraph("Paragraph ", r)),
    rule(
        Metric::RetrievalZh,
        "retrieval_zh",
        "LongBench `retrieval_zh_score`: as retrieval, with the Chinese word for paragraph",
        |p, r, _| best(r, |r| numbers::retrieval("段落", p, r)),
    ).comparing(|r| numbers::names_paragraph("段落", r)),
    rule(
        Metric::Count,
        "count",
        "LongBench `count_score`: share of the numbers in the prediction that are the right one",
        |p, r, _| best(r, |r| numbers::count(p, r)),
    ).comparing(numbers::compares),
    rule(
        Metric::CodeSim,
        "code_sim",
        "LongBench `code_sim_score`: edit similarity of the first line of code",
        |p, r, _| best(r, |r| code_sim::code_sim(p, r)),
    ),
    rule(
        Metric::FirstNumber,
        "first_number",
        "Passkey (landmark attention, Quest): 1 if the first number in the prediction is the reference",
        |p, r, _| best(r, |r| numbers::first(p, r)),
    ).comparing(numbers::compares),
    rule(
        Metric::LastNumber,
        "last_number",
        "LongEval lines: 1 if the last number in the prediction is the reference",
        |p, r, _| best(r, |r| numbers::last(p, r)),
    ).comparing(numbers::compares),
    rule(
        Metric::DigitMatch,
        "digit_match",
        "HiP's passkey: share of the reference's digits that equal the prediction's digit at the same position",
        |p, r, _| best(r, |r| numbers::digit_match(p, r)),
    ).comparing(numbers::compares),
    rule(
        Metric::Gsm8kStrict,
        "gsm8k_strict",
        "lm-eval's GSM8K, `strict-match`: 1 if the number after \"The answer is\" is the reference",
        |p, r, _| best(r, |r| lm_eval::gsm8k_strict(p, r)),
    ).comparing(lm_eval::compares_number).or_nothing(),
    rule(
        Metric::Gsm8kFlexible,
        "gsm8k_flexible",
        "lm-eval's GSM8K, `flexible-extract`: 1 if the last number is the reference",
        |p, r, _| best(r, |r| lm_eval::gsm8k_flexible(p, r)),
    ).comparing(lm_eval::compares_number).or_nothing(),
    rule(
        Metric::CoqaF1,
        "coqa_f1",
        "lm-eval's CoQA: F1 of the first line, mean over leaving out each of several answers",
        |p, r, _| lm_eval::coqa_f1(p, r),
    ).comparing(qa_f1::compares).or_nothing(),
    rule(
        Metric::CoqaEm,
        "coqa_em",
        "lm-eval's CoQA: exact match of the first line, mean over leaving out each of several answers",
        |p, r, _| lm_eval::coqa_em(p, r),
    ).comparing(qa_f1::compares).or_nothing(),
    rule(
        Metric::CodeSimLevenshtein,
        "code_sim_levenshtein",
        "LongBench `code_sim_score` if `python-Levenshtein` is installed",
        |p, r, _| best(r, |r| code_sim::code_sim_levenshtein(p, r)),
    ),
    rule(
        Metric::Gsm8kHashes,
        "gsm8k_hashes",
        "lm-eval's GSM8K with training rows as examples, `strict-match`: 1 if the number after `####` is the reference",
        |p, r, _| best(r, |r| lm_eval::gsm8k_hashes(p, r)),
    ).comparing(lm_eval::compares_number).or_nothing(),
    rule(
        Metric::CorrectLetter,
        "correct_letter",
        "LongBench v2: 1 if the letter after \"The correct answer is\" is the reference",
        |p, r, _| best(r, |r| infinitebench::correct_letter(p, r)),
    ).comparing(infinitebench::is_letter),
    rule(
        Metric::Word,
        "word",
        "InfiniteBench `kv_retrieval`: 1 if the reference is a word of the prediction",
        |p, r, _| best(r, |r| infinitebench::word(p, r)),
    ),
    rule(
        Metric::Name,
        "name",
        "InfiniteBench `longdialogue_qa_eng`: 1 if the reference, in capitals, is a word of the prediction",
        |p, r, _| best(r, |r| infinitebench::name(p, r)),
    ),
    rule(
        Metric::FirstDigits,
        "first_digits",
        "InfiniteBench `passkey`, `number_string`: 1 if the first run of digits equals the reference as text",
        |p, r, _| best(r, |r| infinitebench::first_digits(p, r)),
    ).comparing(numbers::compares),
    rule(
        Metric::LastWordNumber,
        "last_word_number",
        "InfiniteBench `code_run`: 1 if the last word is the number",
        |p, r, _| best(r, |r| infinitebench::last_word_number(p, r)),
    ).comparing(infinitebench::is_whole_number),
    rule(
        Metric::FirstValue,
        "first_value",
        "InfiniteBench `math_find`: 1 if the first number has the value of the reference",
        |p, r, _| best(r, |r| infinitebench::first_value(p, r)),
    ).comparing(infinitebench::is_number),
    rule(
        Metric::LeadingNumbers,
        "leading_numbers",
        "InfiniteBench `math_calc`: share of the reference's numbers before the first mistake",
        |p, r, _| best(r, |r| infinitebench::leading_numbers(p, r)),
    ).comparing(infinitebench::has_whole_number),
    rule(
        Metric::Choice,
        "choice",
        "InfiniteBench `longbook_choice_eng`: 1 if the prediction gives the letter or the text of the option; the references are both",
        |p, r, _| infinitebench::choice(p, r),
    ),
    rule(
        Metric::FunctionChoice,
        "function_choice",
        "InfiniteBench `code_debug`: 1 if the prediction gives the letter or the name of the function; the references are both",
        |p, r, _| infinitebench::function_choice(p, r),
    ),
    rule(
        Metric::QaF1ZhCharacters,
        "qa_f1_zh_characters",
        "InfiniteBench `longbook_qa_chn`: F1 of the bags of characters",
        |p, r, _| best(r, |r| chinese::qa_f1_zh_characters(p, r)),
    ).comparing(chinese::compares_characters),
    rule(
        Metric::RougeLSum,
        "rouge_lsum",
        "InfiniteBench `longbook_sum_eng`: `rougeLsum` of the Python package `rouge_score`",
        |p, r, _| best(r, |r| rouge_sum::rouge_lsum(p, r)),
    ).comparing(rouge_sum::compares_words),
    rule(Metric::Contains, "contains", "SCBench `scbench_kv`: 1 if the reference is in the prediction", |p, r, _| {
        best(r, |r| infinitebench::contains(p, r))
    }),
    rule(
        Metric::ContainsInCapitals,
        "contains_in_capitals",
        "SCBench `scbench_qa_eng`: 1 if the reference is in the prediction, ignoring case",
        |p, r, _| best(r, |r| infinitebench::contains_in_capitals(p, r)),
    ),
    rule(
        Metric::ContainsAllPercent,
        "contains_all_percent",
        "SCBench `scbench_vt`: share of the references in the prediction, ignoring case, in whole percent",
        |p, r, _| infinitebench::contains_all_percent(p, r),
    ),
    rule(
        Metric::AnswerIs,
        "answer_is",
        "lm-eval's MMLU with chain of thought, `get-answer`: 1 if the text after \"answer is\" is the reference",
        |p, r, _| best(r, |r| lm_eval::answer_is(p, r)),
    ).comparing(lm_eval::compares_letters).or_nothing(),
    rule(
        Metric::Aime,
        "aime",
        "lm-eval's AIME: 1 if the boxed text, or else that between dollar signs, or else all, equals the reference after LaTeX is normalised",
        |p, r, _| best(r, |r| aime::aime(p, r)),
    ).comparing(aime::compares).or_nothing(),
    rule(
        Metric::QaF1Ascii,
        "qa_f1_ascii",
        "ZeroSCROLLS `f1`: F1 of the bags of normalised words, written in ASCII",
        |p, r, _| best(r, |r| zeroscrolls::qa_f1_ascii(p, r)),
    ).comparing(zeroscrolls::compares_words),
    rule(
        Metric::FirstLetter,
        "first_letter",
        "ZeroSCROLLS `accuracy`: 1 if the first of the letters A to D that is a word of its own is the reference's",
        |p, r, _| best(r, |r| zeroscrolls::first_letter(p, r)),
    ).comparing(zeroscrolls::has_letter),
    rule(
        Metric::PercentSimilarity,
        "percent_similarity",
        "ZeroSCROLLS `exp_similarity`: 1 for equal percentages, halved for each ten points between them",
        |p, r, _| best(r, |r| zeroscrolls::percent_similarity(p, r)),
    ).comparing(zeroscrolls::has_percentage),
    rule(
        Metric::OrderConcordance,
        "order_concordance",
        "ZeroSCROLLS `concordance_index`: share of the pairs in the right order",
        |p, r, _| best(r, |r| zeroscrolls::order_concordance(p, r)),
    ).comparing(zeroscrolls::has_order),
    rule(Metric::RougeScore1, "rouge_score_1", "F of ROUGE-1 of the Python package `rouge_score`", |p, r, _| {
        best(r, |r| rouge_sum::rouge_score_n(1, p, r))
    }).comparing(rouge_sum::compares_words),
    rule(Metric::RougeScore2, "rouge_score_2", "F of ROUGE-2 of the Python package `rouge_score`", |p, r, _| {
        best(r, |r| rouge_sum::rouge_score_n(2, p, r))
    }).comparing(rouge_sum::compares_pairs),
    rule(Metric::RougeScoreL, "rouge_score_l", "F of ROUGE-L of the Python package `rouge_score`", |p, r, _| {
        best(r, |r| rouge_sum::rouge_score_l(p, r))
    }).comparing(rouge_sum::compares_words),
    rule(
        Metric::RougeScoreMean,
        "rouge_score_mean",
        "ZeroSCROLLS' summaries: geometric mean of ROUGE-1, -2 and -L of `rouge_score`",
        |p, r, _| zeroscrolls::rouge_score_mean(p, r),
    ).comparing(rouge_sum::compares_pairs),
    rule(Metric::Rouge1Recall, "rouge_1_recall", "LooGLE: recall of ROUGE-1 of the package `rouge`", |p, r, _| {
        best(r, |r| loogle::rouge_n_recall(1, p, r))
    }).comparing(rouge::compares_words),
    rule(Metric::Rouge2Recall, "rouge_2_recall", "LooGLE: recall of ROUGE-2 of the package `rouge`", |p, r, _| {
        best(r, |r| loogle::rouge_n_recall(2, p, r))
    }).comparing(rouge::compares_pairs),
    rule(Metric::RougeLRecall, "rouge_l_recall", "LooGLE: recall of ROUGE-L of the package `rouge`", |p, r, _| {
        best(r, |r| loogle::rouge_l_recall(p, r))
    }).comparing(rouge::compares_words),
    rule(Metric::Bleu1, "bleu_1", "LooGLE: BLEU of words, as NLTK computes it", |p, r, _| {
        best(r, |r| loogle::bleu(1, p, r))
    }),
    rule(Metric::Bleu4, "bleu_4", "LooGLE: BLEU of runs of four words, as NLTK computes it", |p, r, _| {
        best(r, |r| loogle::bleu(4, p, r))
    }).comparing(loogle::compares_runs),
    rule(
        Metric::ClozeExact,
        "cloze_exact",
        "LooGLE `get_exact_match`: share of the masked names that the predicted Python dictionary has exactly",
        |p, r, _| best(r, |r| loogle::cloze_exact(p, r)),
    ).comparing(loogle::has_names),
    rule(
        Metric::ClozePartial,
        "cloze_partial",
        "LooGLE `get_partial_match`: share of the masked names of which the predicted Python dictionary has a word",
        |p, r, _| best(r, |r| loogle::cloze_partial(p, r)),
    ).comparing(loogle::has_names),
];

fn unchanged(prediction: &str) -> String {
    prediction.to_owned()
}

/// LongBench's rule for several answers: the best score, and at least 0.
fn best(references: &[String], score: impl Fn(&str) -> f64) -> f64 {
    references.iter().map(|reference| score(reference)).fold(0.0, f64::max)
}
