//! Detects texts that were already put into a chat template.
//!
//! Programs that prepare benchmarks may write whole prompts (RULER's `prepare.py --model_template_type meta-chat`). Put into the model's
//! own template, such a text would be a turn within a turn.

/// Beginnings of whole prompts: those of RULER's `template.py`, and of common templates.
const OPENINGS: [&str; 29] = [
    "[INST]",
    "<s>[INST]",
    "[SYSTEM_PROMPT]",
    "<s>[SYSTEM_PROMPT]",
    "<|im_start|>",
    "<|im_system|>",
    "<|im_user|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|header_start|>",
    "<|startoftext|>",
    "<|bom|>",
    "<|user|>",
    "<|system|>",
    "[|user|]",
    "[|system|]",
    "<|start|>system<|message|>",
    "<|start_of_role|>",
    "<start_of_turn>",
    "<bos><start_of_turn>",
    "<BOS_TOKEN>",
    "<|START_OF_TURN_TOKEN|>",
    "<SPECIAL_10>",
    "[gMASK]",
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "A chat between a curious user and an artificial intelligence assistant.",
    "You are a helpful assistant. USER:",
    // RWKV's template begins with a made-up exchange.
    "User: hi\n\nAssistant: Hi. I am your assistant",
];

/// Ends of whole prompts, where the answer begins. The beginning may differ, since a system prompt may precede the user's turn.
const ENDINGS: [&str; 6] = [
    "[/INST]",
    "<|im_start|>assistant",
    "<|start_header_id|>assistant<|end_header_id|>",
    "<start_of_turn>model",
    "<|assistant|>",
    "<｜Assistant｜>",
];

/// Words that open the first turn, and those that open the answer. A text that begins with the first and ends with the second is a
/// dialogue that waits for its next turn. `Question:` and `Answer:` are not listed, since few-shot prompts use them.
const TURNS: [(&str, &str); 5] = [
    ("User:", "Assistant:"),
    ("USER:", "ASSISTANT:"),
    ("Human:", "Assistant:"),
    ("### User:", "### Assistant:"),
    ("### Instruction:", "### Response:"),
];

/// Special tokens that also occur in documents, as HTML tags.
const TAGS: [&str; 2] = ["<s>", "</s>"];

/// The text that a model's own template writes around the user's turn.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Before the user's turn.
    pub before: &'a str,
    /// After the user's turn, up to the answer.
    pub after: &'a str,
    /// The texts of the model's special tokens.
    pub special: &'a [String],
}

/// The first sign that a user's turn was already put into a chat template; `None` if there is none.
pub fn found<'t>(user: &'t str, own: &Around<'_>) -> Option<&'t str> {
    let text = user.trim();
    let at = |mark: &str| text.find(mark).map(|at| &text[at..at + mark.len()]);
    // The model would take a special token in the user's turn for the end of the turn.
    let is_own = |token: &&String| own.before.contains(token.as_str()) || own.after.contains(token.as_str());
    let is_sign = |token: &&String| !token.trim().is_empty() && !TAGS.contains(&token.as_str());
    let special = || own.special.iter().filter(is_own).filter(is_sign).find_map(|token| at(token));
    let opening = || OPENINGS.iter().find(|opening| text.starts_with(**opening)).map(|opening| &text[..opening.len()]);
    let ending = || ENDINGS.iter().find(|ending| text.ends_with(**ending)).and_then(|ending| last(text, ending));
    let is_dialogue = |(first, last): &&(&str, &str)| text.starts_with(first) && ends_in_words(text, last);
    let dialogue = || TURNS.iter().find(is_dialogue).and_then(|(_, answer)| last(text, answer));
    special().or_else(opening).or_else(ending).or_else(dialogue).or_else(|| between(text, own))
}

/// The last part of the text, as long as `ending`.
fn last<'t>(text: &'t str, ending: &str) -> Option<&'t str> {
    text.get(text.len().checked_sub(ending.len())?..)
}

/// Whether a text ends with these words, after white space.
fn ends_in_words(text: &str, ending: &str) -> bool {
    text.strip_suffix(ending).is_some_and(|before| before.ends_with(char::is_whitespace))
}

/// The text that the template writes after a turn, if it occurs in a text that also begins like a turn of the template, or ends with it.
fn between<'t>(text: &'t str, own: &Around<'_>) -> Option<&'t str> {
    let last = own.before.trim_end().lines().next_back().unwrap_or_default();
    let opening = own.special.iter().fold(last.to_owned(), |line, token| line.replace(token.as_str(), ""));
    let (opening, closing) = (opening.trim(), own.after.trim().lines().next().unwrap_or_default().trim());
    if closing.is_empty() {
        return None;
    }
    let at = text.rfind(closing)?;
    let is_at_end = at + closing.len() == text.len() && !closing.chars().all(char::is_alphanumeric);
    let is_begun = !opening.is_empty() && text.starts_with(opening);
    (is_at_end || is_begun).then(|| &text[at..at + closing.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: [&str; 2] =
        ["<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"];
    const MISTRAL: [&str; 2] = ["<s>[INST] ", " [/INST]"];
    const VICUNA: [&str; 2] = ["A chat. USER: ", " ASSISTANT:"];
    const NONE: [&str; 2] = ["", "\n"];
    const BARE: [&str; 2] = ["<|header|>user\n\n", "<|end|>\n<|header|>assistant\n\n"];

    fn sign<'t>(user: &'t str, [before, after]: [&str; 2]) -> Option<&'t str> {
        let special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"].map(str::to_owned);
        found(user, &Around { before, after, special: &special })
    }

    #[test]
    fn a_text_in_the_models_own_template_is_told() {
        assert_eq!(sign("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", CHATML), Some("<|im_start|>"));
        assert_eq!(sign("Hi<|im_end|>", CHATML), Some("<|im_end|>"), "half of one too");
        assert_eq!(sign("[INST] Hi [/INST]", MISTRAL), Some("[INST]"));
        assert_eq!(sign("Hi [/INST]", MISTRAL), Some("[/INST]"));
        assert_eq!(sign("A chat. USER: Hi ASSISTANT:", VICUNA), Some("ASSISTANT:"));
        assert_eq!(sign("<|header|>user\n\nHi<|end|>\n<|header|>assistant\n\nIt is", BARE), Some("<|end|>"));
    }

    #[test]
    fn a_text_in_the_template_of_another_model_is_told_by_its_beginning() {
        for text in [
            "[INST] Hi [/INST]",
            " <|begin_of_text|><|start_header_id|>user",
            "[gMASK]sop<|user|> \n Hi",
            "<|user|>\nHi",
        ] {
            assert!(sign(text, CHATML).is_some() && sign(text, NONE).is_some(), "{text}");
        }
        let ruler = "A chat between a curious user and an artificial intelligence assistant. The assistant ... USER: Hi ASSISTANT:";
        assert!(sign(ruler, CHATML).is_some());
    }

    /// The templates in `scripts/data/template.py` of NVIDIA's RULER and its forks around a task, with and without an answer prefix; and
    /// other common ones.
    #[test]
    fn a_text_in_any_of_rulers_templates_is_told() {
        for [before, after] in [
            ["[INST] ", " [/INST]"],
            [
                "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, \
                 and polite answers to the user's questions. USER: ",
                " ASSISTANT:",
            ],
            ["You are a helpful assistant. USER: ", " ASSISTANT: "],
            [
                "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
                "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ],
            ["[gMASK]sop<|user|> \n ", "<|assistant|> \n "],
            [
                "User: hi\n\nAssistant: Hi. I am your assistant and I will provide expert full response in full details. Please \
                 feel free to ask any question and I will always answer it\n\nUser: ",
                "\n\nAssistant:",
            ],
            ["<|user|>\n", "<|end|>\n<|assistant|>\n"],
            ["<|user|> ", " <|end|> <|assistant|>"],
            [
                "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
                "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ],
            ["<|startoftext|><|bom|><|system|> <|eom|><|bom|><|user|> ", "<|eom|><|bom|><|assistant|>"],
            ["<SPECIAL_10>System\n\n<SPECIAL_11>User\n", "\n<SPECIAL_11>Assistant\n"],
            ["<｜begin▁of▁sentence｜><｜User｜>", "<｜Assistant｜>"],
            ["<｜begin▁of▁sentence｜>You help.<｜User｜>", "<｜Assistant｜><think>\n"],
        ] {
            for behind in ["", " The special magic number is"] {
                let text = format!("{before}A text. What is the number?{after}{behind}");
                for own in [CHATML, MISTRAL, VICUNA, NONE, BARE] {
                    assert!(sign(&text, own).is_some(), "{text:?}");
                }
            }
        }
        for (text, told) in [
            ("You help.\n\n[INST] Hi [/INST]", "[/INST]"),
            ("You help.<｜User｜>Hi<｜Assistant｜>", "<｜Assistant｜>"),
            ("User: Hi\n\nAssistant:", "Assistant:"),
            ("USER: Hi ASSISTANT:", "ASSISTANT:"),
            ("\n\nHuman: Hi\n\nAssistant:", "Assistant:"),
            ("### Instruction:\nHi\n\n### Response:\n", "### Response:"),
        ] {
            assert_eq!(sign(text, NONE), Some(told), "{text}");
        }
    }

    /// Prompts in the style of TREC, SAMSum, TriviaQA, MeetingBank and few-shot prompts.
    #[test]
    fn dialogues_and_examples_are_in_no_template() {
        for text in [
            "Question: How far is it ?\nType: Distance\nQuestion: Who is it ?\nType:",
            "Dialogue: Amanda: I baked cookies.\nJerry: Sure!\nSummary: Amanda baked.\nDialogue: User: hi\nAssistant: hello\nSummary:",
            "Passage:\nA text.\nQuestion:\nWho?\nAnswer:",
            "Q: What is red?\nA:",
            "User: Where is my order?\nAgent: It is on its way.\n\nWhat did the user ask for?",
            "User: hi\n\nAssistant: hello\n\nSummarize the dialogue above.",
            "Summarize this.\n\nUser: hi\nAssistant:",
            "User manuals call the assistant by a word such as Assistant:",
            "Human: a word. Which word follows myAssistant:",
            "Instruction: add.\nInput: 1 1\nOutput:",
        ] {
            for own in [CHATML, MISTRAL, NONE] {
                assert_eq!(sign(text, own), None, "{text}");
            }
        }
    }

    #[test]
    fn texts_about_templates_are_not_in_one() {
        for text in [
            "Which model ends turns with [/INST]? Say it.",
            "The <s>old</s> new text.",
            "She said: USER: is a word. So is ASSISTANT: they say.",
            "A text that ends in a code: <|endoftext|>",
            "",
        ] {
            [MISTRAL, VICUNA, NONE].into_iter().for_each(|template| assert_eq!(sign(text, template), None, "{text}"));
        }
        assert_eq!(sign("The <s>old</s> new text.", CHATML), None);
    }
}
