//! Character references: `&amp;`, `&#8364;`, `&#x20ac;`.

const MAX_REFERENCE: usize = 16;

/// The references in common use. Others stay as they are written.
const NAMED: &[(&str, &str)] = &[
    ("AMP", "&"),
    ("Aring", "Å"),
    ("Auml", "Ä"),
    ("Ccedil", "Ç"),
    ("Eacute", "É"),
    ("GT", ">"),
    ("LT", "<"),
    ("Ntilde", "Ñ"),
    ("Oslash", "Ø"),
    ("Ouml", "Ö"),
    ("QUOT", "\""),
    ("Uuml", "Ü"),
    ("aacute", "á"),
    ("acirc", "â"),
    ("aelig", "æ"),
    ("agrave", "à"),
    ("alpha", "α"),
    ("amp", "&"),
    ("apos", "'"),
    ("aring", "å"),
    ("asymp", "≈"),
    ("atilde", "ã"),
    ("auml", "ä"),
    ("beta", "β"),
    ("bull", "•"),
    ("ccedil", "ç"),
    ("cent", "¢"),
    ("check", "✓"),
    ("copy", "©"),
    ("dArr", "⇓"),
    ("darr", "↓"),
    ("deg", "°"),
    ("delta", "δ"),
    ("divide", "÷"),
    ("eacute", "é"),
    ("ecirc", "ê"),
    ("egrave", "è"),
    ("emsp", " "),
    ("ensp", " "),
    ("epsilon", "ε"),
    ("euml", "ë"),
    ("euro", "€"),
    ("frac12", "½"),
    ("frac14", "¼"),
    ("frac34", "¾"),
    ("gamma", "γ"),
    ("ge", "≥"),
    ("gt", ">"),
    ("hArr", "⇔"),
    ("harr", "↔"),
    ("hellip", "…"),
    ("iacute", "í"),
    ("icirc", "î"),
    ("iexcl", "¡"),
    ("igrave", "ì"),
    ("infin", "∞"),
    ("iquest", "¿"),
    ("iuml", "ï"),
    ("lArr", "⇐"),
    ("lambda", "λ"),
    ("laquo", "«"),
    ("larr", "←"),
    ("lbrace", "{"),
    ("lbrack", "["),
    ("ldquo", "“"),
    ("le", "≤"),
    ("lpar", "("),
    ("lsaquo", "‹"),
    ("lsquo", "‘"),
    ("lt", "<"),
    ("mdash", "—"),
    ("micro", "µ"),
    ("middot", "·"),
    ("minus", "−"),
    ("mu", "μ"),
    ("nbsp", " "),
    ("ndash", "–"),
    ("ne", "≠"),
    ("ntilde", "ñ"),
    ("num", "#"),
    ("oacute", "ó"),
    ("ocirc", "ô"),
    ("ograve", "ò"),
    ("omega", "ω"),
    ("oslash", "ø"),
    ("otilde", "õ"),
    ("ouml", "ö"),
    ("para", "¶"),
    ("period", "."),
    ("permil", "‰"),
    ("pi", "π"),
    ("plus", "+"),
    ("plusmn", "±"),
    ("pound", "£"),
    ("quot", "\""),
    ("rArr", "⇒"),
    ("raquo", "»"),
    ("rarr", "→"),
    ("rbrace", "}"),
    ("rbrack", "]"),
    ("rdquo", "”"),
    ("reg", "®"),
    ("rpar", ")"),
    ("rsaquo", "›"),
    ("rsquo", "’"),
    ("sbquo", "‚"),
    ("sect", "§"),
    ("shy", ""),
    ("sigma", "σ"),
    ("sup2", "²"),
    ("sup3", "³"),
    ("szlig", "ß"),
    ("thinsp", " "),
    ("tilde", "˜"),
    ("times", "×"),
    ("trade", "™"),
    ("uArr", "⇑"),
    ("uacute", "ú"),
    ("uarr", "↑"),
    ("ucirc", "û"),
    ("ugrave", "ù"),
    ("uuml", "ü"),
    ("yen", "¥"),
    ("zwj", ""),
    ("zwnj", ""),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    Text(&'static str),
    Character(char),
}

/// The reference at the start of `text`, which follows the `&`, and its length in bytes.
pub fn reference(text: &str) -> Option<(Replacement, usize)> {
    if let Some(number) = text.strip_prefix('#') {
        let (digits, radix, before) = match number.strip_prefix(['x', 'X']) {
            Some(digits) => (digits, 16, 2),
            None => (number, 10, 1),
        };
        let length = run(digits, |byte| (byte as char).is_digit(radix))?;
        let value = u32::from_str_radix(digits.get(..length)?, radix).unwrap_or(u32::MAX);
        let character = char::from_u32(windows_1252(value)).unwrap_or(char::REPLACEMENT_CHARACTER);
        let end = usize::from(digits.as_bytes().get(length) == Some(&b';'));
        return Some((Replacement::Character(character), before + length + end));
    }
    let length = run(text, |byte| byte.is_ascii_alphanumeric())?;
    // Without a semicolon it is often a parameter of an address.
    if text.as_bytes().get(length) != Some(&b';') {
        return None;
    }
    let name = text.get(..length)?;
    let found = NAMED.binary_search_by_key(&name, |(name, _)| name).ok()?;
    let (_, meaning) = NAMED.get(found)?;
    Some((Replacement::Text(meaning), length + 1))
}

fn run(text: &str, matches_byte: impl Fn(u8) -> bool) -> Option<usize> {
    let length = text.bytes().take(MAX_REFERENCE).take_while(|byte| matches_byte(*byte)).count();
    (length > 0).then_some(length)
}

/// Numbers in the range of Windows-1252, as browsers interpret them.
fn windows_1252(value: u32) -> u32 {
    match value {
        0x80 => 0x20ac,
        0x85 => 0x2026,
        0x91 => 0x2018,
        0x92 => 0x2019,
        0x93 => 0x201c,
        0x94 => 0x201d,
        0x95 => 0x2022,
        0x96 => 0x2013,
        0x97 => 0x2014,
        0x99 => 0x2122,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::NAMED;

    #[test]
    fn names_are_in_order() {
        assert!(NAMED.is_sorted_by(|(a, _), (b, _)| a < b));
    }
}
