//! Chat templates that a text was put into before: told by what a template writes around the user's turn.
//!
//! Programs that prepare benchmarks write whole prompts (RULER's `prepare.py --model_template_type meta-chat`). Such a text in
//! a model's own template would be a turn within a turn.

/// What whole prompts begin with, of whatever model: those of RULER's `template.py`, and the openings of usual templates.
const OPENINGS: [&str; 14] = [
    "[INST]",
    "<s>[INST]",
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|startoftext|>",
    "<|user|>",
    "<|system|>",
    "<start_of_turn>",
    "<bos><start_of_turn>",
    "<BOS_TOKEN>",
    "<|START_OF_TURN_TOKEN|>",
    "[gMASK]",
    "A chat between a curious user and an artificial intelligence assistant.",
];

/// Special tokens that documents hold as well, as tags of HTML.
const TAGS: [&str; 2] = ["<s>", "</s>"];

/// What a model's own template writes.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Before the user's turn.
    pub before: &'a str,
    /// Behind it, up to the answer.
    pub after: &'a str,
    /// The texts of the model's special tokens.
    pub special: &'a [String],
}

/// The first sign in a user's turn that it has been put into a chat template; `None` if there is none.
pub fn found<'t>(user: &'t str, own: &Around<'_>) -> Option<&'t str> {
    let text = user.trim();
    let at = |mark: &str| text.find(mark).map(|at| &text[at..at + mark.len()]);
    // A special token in the user's words ends his turn for the model.
    let is_own = |token: &&String| own.before.contains(token.as_str()) || own.after.contains(token.as_str());
    let is_sign = |token: &&String| !token.trim().is_empty() && !TAGS.contains(&token.as_str());
    let special = || own.special.iter().filter(is_own).filter(is_sign).find_map(|token| at(token));
    let opening = OPENINGS.iter().find(|opening| text.starts_with(**opening));
    special().or_else(|| opening.map(|opening| &text[..opening.len()])).or_else(|| between(text, own))
}

/// The end of a turn in a text that begins as the template's own turn does, or ends as it does.
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
