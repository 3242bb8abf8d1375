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

/// Words that no rule treats as an article, a number or punctuation.
fn words() -> impl Strategy<Value = String> {
    proptest::collection::vec("[b-z]{3,7}", 1..8).prop_map(|words| words.join(" "))
}

fn chinese() -> impl Strategy<Value = String> {
    let of = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
    proptest::collection::vec(proptest::sample::select(of("北京是中国的首都我们今天去公园看书")), 1..12)
        .prop_map(|parts| parts.concat())
}

/// For every metric: a right prediction and its reference.
fn right_answers() -> impl Strategy<Value = (Metric, String, String)> {
    let all = Metric::all().collect::<Vec<_>>();
    (proptest::sample::select(all), words(), chinese(), 1u32..1_000_000).prop_map(|(metric, words, chinese, number)| {
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
    })
}

/// A text that shares no character with a reference.
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

    /// Scores of any texts are finite and in 0..=1, also for empty predictions and references, and 0 without
    /// references.
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

    /// A right answer scores 1, alone and among several answers where the best counts; a wrong one scores 0.
    #[test]
    fn right_answers_score_1_and_others_0((metric, prediction, reference) in right_answers(), other in nothing()) {
        let score = |prediction: &str, references: &[&str]| {
            let references: Vec<String> = references.iter().map(|r| (*r).to_owned()).collect();
            metric.score(&metric.postprocess(prediction), &references, std::slice::from_ref(&reference))
        };
        // The package `rouge` adds 1e-8 to the denominator.
        prop_assert!(score(&prediction, &[&reference]) > 1.0 - 1e-6, "{}", metric);
        prop_assert_eq!(score(&other, &[&reference]), 0.0, "{} of {:?}", metric, other);
        prop_assert_eq!(score("", &[&reference]), 0.0, "{}", metric);
        let several = score(&prediction, &["Quite another one", &reference]);
        match metric {
            Metric::StringMatchAll | Metric::ContainsAllPercent | Metric::CoqaF1 | Metric::CoqaEm => prop_assert_eq!(several, 0.5, "{}", metric),
            _ => prop_assert!(several > 1.0 - 1e-6, "{}", metric),
        }
    }

    /// The order of the answers does not matter, and another answer never lowers the best score.
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

    /// What the published rules remove does not change a score.
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

    /// If the prediction names several classes, the score is one over their number.
    #[test]
    fn a_class_is_shared_with_the_others_that_are_named(count in 1usize..6) {
        let classes: Vec<String> = (0..6).map(|i| format!("class{i}")).collect();
        let prediction = classes[..count].join(" or ");
        let score = Metric::Classification.score(&prediction, &classes[..1], &classes);
        prop_assert!((score - 1.0 / count as f64).abs() < 1e-12);
    }
}
