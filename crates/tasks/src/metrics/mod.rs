//! Scorers: a prediction and its references in, a number in 0..=1 out.
//!
//! One file per family of metrics, one table (`RULES`) that names them all, and [`datasets`], which
//! says how each published data set is scored. Every rule reproduces the published scorer, its
//! quirks included: numbers are only comparable with those of other tools if they are computed alike.
//! Nothing here reads files or knows where a prediction came from.

pub mod datasets;

mod aime;
mod chinese;
mod classification;
mod code_sim;
mod infinitebench;
pub(crate) mod lm_eval;
mod loogle;
mod numbers;
pub(crate) mod python;
pub(crate) mod python_literal;
mod qa_f1;
mod rouge;
mod rouge_sum;
mod string_match;
mod zeroscrolls;

use serde::{Deserialize, Serialize};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

/// How a prediction is scored; names are those of the command line (`--metric`) and of task files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Metric {
    /// RULER: share of the references found in the prediction, case-insensitively.
    StringMatchAll,
    /// RULER: 1 if any reference is found in the prediction, case-insensitively.
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
    /// HiP's passkey: share of the reference's digits that the prediction's digits equal, place by place.
    DigitMatch,
    /// lm-eval's GSM8K, `strict-match`: 1 if the number after "The answer is" is the reference.
    Gsm8kStrict,
    /// lm-eval's GSM8K, `flexible-extract`: 1 if the last number is the reference.
    Gsm8kFlexible,
    /// lm-eval's CoQA: F1 of the first line, each of several answers left out in turn.
    CoqaF1,
    /// The same of exact matches.
    CoqaEm,
    /// LongBench `code_sim_score` where `python-Levenshtein` is installed.
    CodeSimLevenshtein,
    /// lm-eval's GSM8K as its training rows are answered, `strict-match`: 1 if the number after `####` is the reference.
    Gsm8kHashes,
    /// LongBench v2: 1 if the letter after "The correct answer is" is the reference.
    CorrectLetter,
    /// InfiniteBench `kv_retrieval`: 1 if the reference is a word of the prediction.
    Word,
    /// InfiniteBench `longdialogue_qa_eng`: 1 if the reference, in capitals, is a word of the prediction.
    Name,
    /// InfiniteBench `passkey`, `number_string`: 1 if the first digits are written like the reference.
    FirstDigits,
    /// InfiniteBench `code_run`: 1 if the last word is the number.
    LastWordNumber,
    /// InfiniteBench `math_find`: 1 if the first number has the value of the reference.
    FirstValue,
    /// InfiniteBench `math_calc`: share of the reference's numbers before the first mistake.
    LeadingNumbers,
    /// InfiniteBench `longbook_choice_eng`: 1 if the option is given by its letter or its text, which the references are.
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
    /// SCBench `scbench_vt`: share of the references in the prediction whatever the case, in whole percents.
    ContainsAllPercent,
    /// lm-eval's MMLU as it is thought through, `get-answer`: 1 if what follows "answer is" is the reference.
    AnswerIs,
    /// lm-eval's AIME: 1 if what is boxed, or in dollars, or all of it, is the reference after LaTeX is written in one way.
    Aime,
    /// ZeroSCROLLS `f1`: F1 of the bags of normalised words, written in ASCII.
    QaF1Ascii,
    /// ZeroSCROLLS `accuracy`: 1 if the first letter of A to D that is a word is that of the reference.
    FirstLetter,
    /// ZeroSCROLLS `exp_similarity`: halved for each ten points between two percentages.
    PercentSimilarity,
    /// ZeroSCROLLS `concordance_index`: share of the pairs that stand in the right order.
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
    /// LooGLE `get_exact_match`: share of the masked names that a dictionary in Python has as they are.
    ClozeExact,
    /// LooGLE `get_partial_match`: the same of names of which it has a word.
    ClozePartial,
}

type Scorer = fn(prediction: &str, references: &[String], all_classes: &[String]) -> f64;

/// All that is registered of a metric.
struct Rule {
    metric: Metric,
    name: &'static str,
    about: &'static str,
    score: Scorer,
    postprocess: fn(&str) -> String,
    needs_classes: bool,
    /// Whether a reference that is not blank holds anything that is compared.
    compares: fn(&str) -> bool,
    /// Whether a prediction of nothing is right for a reference that holds nothing that is compared.
    nothing_is_right: bool,
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
    /// The same rule, which compares nothing of some references.
    const fn comparing(self, compares: fn(&str) -> bool) -> Self {
        Self { compares, ..self }
    }

    /// The same rule, for which nothing equals nothing.
    const fn or_nothing(self) -> Self {
        Self { nothing_is_right: true, ..self }
    }
}

fn anything(_: &str) -> bool {
    true
}

/// Why reference answers cannot be scored against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// One of them is empty or white space.
    Blank,
    /// None of them, or this one, holds anything that the metric compares.
    Nothing {
        /// The reference.
        reference: String,
    },
}

/// The one place where a metric is registered, in the order of the enum.
static RULES: [Rule; 54] = [
    Rule {
        postprocess: string_match::postprocess,
        ..rule(
            Metric::StringMatchAll,
            "string_match_all",
            "RULER: share of the references found in the prediction, case-insensitively",
            |p, r, _| string_match::all(p, r),
        ).comparing(string_match::compares)
    },
    Rule {
        postprocess: string_match::postprocess,
        ..rule(
            Metric::StringMatchPart,
            "string_match_part",
            "RULER: 1 if any reference is found in the prediction, case-insensitively",
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
        "HiP's passkey: share of the reference's digits that the prediction's digits equal, place by place",
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
        "lm-eval's CoQA: F1 of the first line, each of several answers left out in turn",
        |p, r, _| lm_eval::coqa_f1(p, r),
    ).comparing(qa_f1::compares).or_nothing(),
    rule(
        Metric::CoqaEm,
        "coqa_em",
        "lm-eval's CoQA: exact match of the first line, each of several answers left out in turn",
        |p, r, _| lm_eval::coqa_em(p, r),
    ).comparing(qa_f1::compares).or_nothing(),
    rule(
        Metric::CodeSimLevenshtein,
        "code_sim_levenshtein",
        "LongBench `code_sim_score` where `python-Levenshtein` is installed",
        |p, r, _| best(r, |r| code_sim::code_sim_levenshtein(p, r)),
    ),
    rule(
        Metric::Gsm8kHashes,
        "gsm8k_hashes",
        "lm-eval's GSM8K as its training rows are answered, `strict-match`: 1 if the number after `####` is the reference",
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
        "InfiniteBench `passkey`, `number_string`: 1 if the first digits are written like the reference",
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
        "InfiniteBench `longbook_choice_eng`: 1 if the option is given by its letter or its text, which the references are",
        |p, r, _| infinitebench::choice(p, r),
    ),
    rule(
        Metric::FunctionChoice,
        "function_choice",
        "InfiniteBench `code_debug`: 1 if the function is given by its letter or its name, which the references are",
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
        "SCBench `scbench_qa_eng`: 1 if the reference is in the prediction, whatever the case",
        |p, r, _| best(r, |r| infinitebench::contains_in_capitals(p, r)),
    ),
    rule(
        Metric::ContainsAllPercent,
        "contains_all_percent",
        "SCBench `scbench_vt`: share of the references in the prediction whatever the case, in whole percents",
        |p, r, _| infinitebench::contains_all_percent(p, r),
    ),
    rule(
        Metric::AnswerIs,
        "answer_is",
        "lm-eval's MMLU as it is thought through, `get-answer`: 1 if what follows \"answer is\" is the reference",
        |p, r, _| best(r, |r| lm_eval::answer_is(p, r)),
    ).comparing(lm_eval::compares_letters).or_nothing(),
    rule(
        Metric::Aime,
        "aime",
        "lm-eval's AIME: 1 if what is boxed, or in dollars, or all of it, is the reference after LaTeX is written in one way",
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
        "ZeroSCROLLS `accuracy`: 1 if the first letter of A to D that is a word is that of the reference",
        |p, r, _| best(r, |r| zeroscrolls::first_letter(p, r)),
    ).comparing(zeroscrolls::has_letter),
    rule(
        Metric::PercentSimilarity,
        "percent_similarity",
        "ZeroSCROLLS `exp_similarity`: halved for each ten points between two percentages",
        |p, r, _| best(r, |r| zeroscrolls::percent_similarity(p, r)),
    ).comparing(zeroscrolls::has_percentage),
    rule(
        Metric::OrderConcordance,
        "order_concordance",
        "ZeroSCROLLS `concordance_index`: share of the pairs that stand in the right order",
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
        "LooGLE `get_exact_match`: share of the masked names that a dictionary in Python has as they are",
        |p, r, _| best(r, |r| loogle::cloze_exact(p, r)),
    ).comparing(loogle::has_names),
    rule(
        Metric::ClozePartial,
        "cloze_partial",
        "LooGLE `get_partial_match`: share of the masked names of which a dictionary in Python has a word",
        |p, r, _| best(r, |r| loogle::cloze_partial(p, r)),
    ).comparing(loogle::has_names),
];

impl Metric {
    /// The metric of that name.
    ///
    /// # Errors
    /// If there is none; the hint names the nearest.
    pub fn parse(name: &str) -> Result<Self, UsageError> {
        RULES
            .iter()
            .find(|rule| rule.name == name)
            .map(|rule| rule.metric)
            .ok_or_else(|| UsageError::unknown("metric", name, RULES.iter().map(|rule| rule.name)))
    }

    /// The name used on the command line and in files.
    pub fn name(self) -> &'static str {
        self.rule().name
    }

    /// What it measures, in a line.
    pub fn about(self) -> &'static str {
        self.rule().about
    }

    /// Every metric, in the order in which they are listed to users.
    pub fn all() -> impl Iterator<Item = Metric> {
        RULES.iter().map(|rule| rule.metric)
    }

    /// Whether [`score`](Self::score) needs the list of class names.
    pub fn needs_classes(self) -> bool {
        self.rule().needs_classes
    }

    /// What is wrong with reference answers, if anything: a score against them would say nothing of a prediction.
    ///
    /// A blank one is found in anything, or equals an empty prediction. One that holds nothing that is compared (`the` for
    /// words without articles) is never right, whatever is said, which is of no matter beside others; by some rules it is
    /// right where nothing is said.
    pub fn flaw(self, references: &[String]) -> Option<Flaw> {
        let Rule { compares, nothing_is_right, .. } = self.rule();
        if references.iter().any(|reference| is_blank(reference)) {
            return Some(Flaw::Blank);
        }
        let mut flawed = references.iter().filter(|reference| !compares(reference));
        let first = flawed.next()?;
        let is_flawed = *nothing_is_right || 1 + flawed.count() == references.len();
        is_flawed.then(|| Flaw::Nothing { reference: first.clone() })
    }

    /// The prediction as the published evaluation cleans it before this metric.
    ///
    /// RULER strips it, turns each control character into a newline and strips again; LongBench leaves
    /// it alone (its cut to the [`first_line`] belongs to the data set, see [`datasets`]).
    pub fn postprocess(self, prediction: &str) -> String {
        (self.rule().postprocess)(prediction)
    }

    /// The score of one prediction in 0..=1 by the published rule, the best over the references where
    /// that takes the best. Without references the score is 0.
    ///
    /// `all_classes` is read by `classification` only.
    pub fn score(self, prediction: &str, references: &[String], all_classes: &[String]) -> f64 {
        (self.rule().score)(prediction, references, all_classes)
    }

    fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<String> for Metric {
    type Error = UsageError;

    fn try_from(name: String) -> Result<Self, UsageError> {
        Self::parse(&name)
    }
}

impl From<Metric> for &'static str {
    fn from(metric: Metric) -> Self {
        metric.name()
    }
}

/// What LongBench's `eval.py` keeps of a prediction for some data sets: the first line, after any line
/// breaks at the start.
pub fn first_line(prediction: &str) -> &str {
    prediction.trim_start_matches('\n').split('\n').next().unwrap_or("")
}

fn unchanged(prediction: &str) -> String {
    prediction.to_owned()
}

/// LongBench's way over several answers: the best, and at least 0.
fn best(references: &[String], score: impl Fn(&str) -> f64) -> f64 {
    references.iter().map(|reference| score(reference)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (i, metric) in Metric::all().enumerate() {
            assert_eq!(metric as usize, i);
            assert_eq!(Metric::parse(metric.name()), Ok(metric));
        }
    }

    #[test]
    fn names_survive_serde() {
        for metric in Metric::all() {
            let json = serde_json::to_string(&metric).unwrap();
            assert_eq!(json, format!("\"{}\"", metric.name()));
            assert_eq!(serde_json::from_str::<Metric>(&json).unwrap(), metric);
        }
    }

    #[test]
    fn unknown_metrics_suggest_the_nearest() {
        assert_eq!(Metric::parse("rougel").unwrap_err().hint.as_deref(), Some("did you mean `rouge_l`?"));
    }

    #[test]
    fn without_references_nothing_is_right() {
        for metric in Metric::all() {
            assert_eq!(metric.score("anything 1", &[], &[]), 0.0, "{metric}");
        }
    }

    /// Words that no rule takes for an article, a number or a mark.
    fn words() -> impl Strategy<Value = String> {
        proptest::collection::vec("[b-z]{3,7}", 1..8).prop_map(|words| words.join(" "))
    }

    fn chinese() -> impl Strategy<Value = String> {
        let of = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        proptest::collection::vec(proptest::sample::select(of("北京是中国的首都我们今天去公园看书")), 1..12)
            .prop_map(|parts| parts.concat())
    }

    /// For every metric: a prediction that is right, and the reference it is right for.
    fn right_answers() -> impl Strategy<Value = (Metric, String, String)> {
        let all = Metric::all().collect::<Vec<_>>();
        (proptest::sample::select(all), words(), chinese(), 1u32..1_000_000).prop_map(
            |(metric, words, chinese, number)| {
                let same = |text: String| (metric, text.clone(), text);
                match metric {
                    Metric::QaF1Zh | Metric::RougeLZh | Metric::QaF1ZhCharacters => same(chinese),
                    Metric::Retrieval => same(format!("Paragraph {number}")),
                    Metric::RetrievalZh => same(format!("段落{number}")),
                    Metric::Count
                    | Metric::FirstNumber
                    | Metric::LastNumber
                    | Metric::DigitMatch
                    | Metric::FirstDigits
                    | Metric::LastWordNumber
                    | Metric::FirstValue
                    | Metric::LeadingNumbers => same(number.to_string()),
                    Metric::Gsm8kHashes => (metric, format!("So it is.\n#### {number}\n"), number.to_string()),
                    Metric::CorrectLetter => (metric, "**The correct answer is (B)**".to_owned(), "B".to_owned()),
                    Metric::Word => (metric, words.clone(), words.split(' ').next().unwrap().to_owned()),
                    Metric::Name => (metric, words.clone(), words.split(' ').next().unwrap().to_uppercase()),
                    Metric::FunctionChoice => (metric, format!("The answer is: {words}."), words),
                    Metric::Gsm8kStrict => (metric, format!("So it is. The answer is {number}.\n"), number.to_string()),
                    Metric::AnswerIs => (metric, format!("So the answer is {words}.\n\nQ: more"), words),
                    Metric::Gsm8kFlexible => (metric, format!("3 and more make {number}"), number.to_string()),
                    Metric::Rouge2 | Metric::Rouge2Recall | Metric::RougeScore2 | Metric::RougeScoreMean => {
                        same(format!("{words} end"))
                    }
                    Metric::Bleu4 => same(format!("{words} and so they end")),
                    Metric::FirstLetter => (metric, format!("(B) {words}"), "B".to_owned()),
                    Metric::PercentSimilarity => (metric, format!("{words}: {number}%"), format!("{number}%")),
                    Metric::OrderConcordance => same("2, 3, 1".to_owned()),
                    Metric::ClozeExact | Metric::ClozePartial => same(format!("{{'<mask-0>': '{words}'}}")),
                    _ => same(words),
                }
            },
        )
    }

    /// A text that has no character of a reference.
    fn nothing() -> impl Strategy<Value = String> {
        "[!?~A]{0,9}"
    }

    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![
            ".{0,24}",
            "(.|\n|\r|\t|[0-9]|Paragraph [0-9]|段落[0-9]|[a-c] |The answer is [0-9]|\\.|`|#|//|中|文){0,16}",
            words(),
            chinese(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Whatever the texts: finite and in 0..=1, empty predictions and references included, and 0 without any.
        #[test]
        fn scores_are_between_0_and_1(
            prediction in any_text(),
            references in proptest::collection::vec(any_text(), 0..4),
            classes in proptest::collection::vec(any_text(), 0..4),
        ) {
            for metric in Metric::all() {
                for prediction in [prediction.as_str(), ""] {
                    let score = metric.score(&metric.postprocess(prediction), &references, &classes);
                    prop_assert!((0.0..=1.0).contains(&score), "{}: {}", metric, score);
                    prop_assert!(score == 0.0 || !references.is_empty(), "{}", metric);
                }
            }
        }

        /// What is right scores 1, alone and as one of several answers where the best counts; what is not scores 0.
        #[test]
        fn right_answers_score_1_and_others_0((metric, prediction, reference) in right_answers(), other in nothing()) {
            let score = |prediction: &str, references: &[&str]| {
                let references: Vec<String> = references.iter().map(|r| (*r).to_owned()).collect();
                metric.score(&metric.postprocess(prediction), &references, std::slice::from_ref(&reference))
            };
            // The package `rouge` adds 1e-8 below the line.
            prop_assert!(score(&prediction, &[&reference]) > 1.0 - 1e-6, "{}", metric);
            prop_assert_eq!(score(&other, &[&reference]), 0.0, "{} of {:?}", metric, other);
            prop_assert_eq!(score("", &[&reference]), 0.0, "{}", metric);
            let several = score(&prediction, &["Quite another one", &reference]);
            match metric {
                Metric::StringMatchAll | Metric::ContainsAllPercent | Metric::CoqaF1 | Metric::CoqaEm => prop_assert_eq!(several, 0.5, "{}", metric),
                _ => prop_assert!(several > 1.0 - 1e-6, "{}", metric),
            }
        }

        /// The order of the answers is of no matter, and a further one never lowers the best.
        #[test]
        fn answers_are_a_set(
            prediction in any_text(),
            references in proptest::collection::vec(any_text(), 1..4),
            classes in proptest::collection::vec(any_text(), 0..4),
        ) {
            let turned: Vec<String> = references.iter().rev().cloned().collect();
            for metric in Metric::all() {
                let score = |references: &[String]| metric.score(&prediction, references, &classes);
                prop_assert!((score(&references) - score(&turned)).abs() < 1e-12, "{}", metric);
                let counts_all = matches!(metric, Metric::StringMatchAll | Metric::ContainsAllPercent);
                let takes_the_best = !counts_all && !matches!(metric, Metric::CoqaF1 | Metric::CoqaEm);
                let twice: Vec<String> = [references.as_slice(), &references[..1]].concat();
                if !counts_all {
                    prop_assert_eq!(score(&references), score(&twice), "{}: an answer given twice is one", metric);
                }
                if takes_the_best {
                    let fewer = score(&references[1..]);
                    prop_assert!(score(&references) >= fewer, "{}", metric);
                }
            }
        }

        /// What the published rules take away makes no difference.
        #[test]
        fn what_is_normalised_away_makes_no_difference(answer in words(), said in words(), number in 0u32..100_000) {
            let score = |metric: Metric, prediction: &str, reference: &str| {
                metric.score(&metric.postprocess(prediction), &[reference.to_owned()], &[])
            };
            let dressed = format!("  The {}!!", said.to_uppercase().replace(' ', ",  an "));
            for metric in [Metric::QaF1, Metric::ExactMatch, Metric::CoqaF1, Metric::CoqaEm] {
                prop_assert_eq!(score(metric, &said, &answer), score(metric, &dressed, &answer), "{}", metric);
            }
            let mut turned: Vec<&str> = said.split(' ').collect();
            turned.reverse();
            let turned = turned.join(" ");
            for metric in [Metric::QaF1, Metric::CoqaF1, Metric::Rouge1] {
                prop_assert_eq!(score(metric, &said, &answer), score(metric, &turned, &answer), "order: {}", metric);
            }
            let (there, back) = (score(Metric::QaF1, &said, &answer), score(Metric::QaF1, &answer, &said));
            prop_assert!((there - back).abs() < 1e-12);
            for metric in [Metric::StringMatchAll, Metric::StringMatchPart] {
                let among = format!("\u{1}{} {} more", said, answer.to_uppercase());
                prop_assert_eq!(score(metric, &among, &answer), 1.0, "{}", metric);
            }
            let number = number.to_string();
            prop_assert_eq!(score(Metric::FirstNumber, &format!("{said} {number}, not 7"), &number), 1.0);
            prop_assert_eq!(score(Metric::LastNumber, &format!("not 7 but {number} {said}"), &number), 1.0);
            prop_assert_eq!(score(Metric::Count, &format!("{said} {number} {said}"), &number), 1.0);
            prop_assert_eq!(score(Metric::Count, &format!("{number} or {number}x7"), &number), if number == "7" { 1.0 } else { 2.0 / 3.0 });
            let lines = format!("# why\n// so\n```\n{said}\nmore of it");
            for metric in [Metric::CodeSim, Metric::CodeSimLevenshtein] {
                prop_assert_eq!(score(metric, &lines, &answer), score(metric, &said, &answer));
            }
            prop_assert!(score(Metric::CodeSimLevenshtein, &said, &answer) >= score(Metric::CodeSim, &said, &answer) - 1e-9);
        }

        /// Of class names in a prediction the reference is one: the share is one over their number.
        #[test]
        fn a_class_is_shared_with_the_others_that_are_named(count in 1usize..6) {
            let classes: Vec<String> = (0..6).map(|i| format!("class{i}")).collect();
            let prediction = classes[..count].join(" or ");
            let score = Metric::Classification.score(&prediction, &classes[..1], &classes);
            prop_assert!((score - 1.0 / count as f64).abs() < 1e-12);
        }
    }
}
