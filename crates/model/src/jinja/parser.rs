//! Parses tokens into a tree, by jinja2's grammar.
//!
//! The file is long because a recursive-descent parser reads as one: each function calls those of the grammar's next level.

use std::sync::Arc;

use super::ast::{
    Arguments, CallExpression, Comparison, Constant, Expression, FilterCall, For, Kind, Macro, Operator, Special,
    Statement, Target,
};
use super::filter_names;
use super::lexer::{Token, tokens};
use super::limits::{Fault, NESTING, SOURCE_BYTES, unsupported};
use super::predicates;

type Parsed<T> = Result<T, Fault>;

/// Tags of jinja2 that chat templates do not need.
const UNSUPPORTED: [&str; 5] = ["extends", "include", "import", "from", "autoescape"];

/// Parses a template.
///
/// # Errors
/// What is wrong, with its line.
pub fn parse(source: &str) -> Parsed<Vec<Statement>> {
    if source.len() > SOURCE_BYTES {
        return Err(Fault::new(format!("it has {} bytes, more than {SOURCE_BYTES}", source.len())));
    }
    let mut parser = Parser { tokens: tokens(source)?, at: 0, nesting: 0, loops: 0, around: 0, specials: Vec::new() };
    let all = parser.statements(&[]).map_err(|fault| fault.at(parser.line()))?;
    Ok(all)
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    nesting: usize,
    /// The number of enclosing loops that `break` could leave here.
    loops: usize,
    /// The number of enclosing loops, including those outside of macros. Their bodies may not assign to `loop`.
    around: usize,
    /// The special names found so far in the bodies of the enclosing macros.
    specials: Vec<Special>,
}

impl Parser {
    fn token(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn line(&self) -> usize {
        self.tokens[self.at].1
    }

    fn after(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].0
    }

    fn next(&mut self) -> Token {
        let token = self.token().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn fail<T>(&self, what: impl Into<String>) -> Parsed<T> {
        Err(Fault::new(what).at(self.line()))
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Token::Op(this) if *this == op)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(this) if **this == *name)
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let is = self.is_op(op);
        if is {
            self.next();
        }
        is
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        if is {
            self.next();
        }
        is
    }

    fn expect_op(&mut self, op: &str) -> Parsed<()> {
        match self.skip_op(op) {
            true => Ok(()),
            false => self.fail(format!("expected '{op}', got {}", shown(self.token()))),
        }
    }

    fn expect_name(&mut self) -> Parsed<Arc<str>> {
        match self.token().clone() {
            Token::Name(name) => {
                self.next();
                Ok(name)
            }
            other => self.fail(format!("expected a name, got {}", shown(&other))),
        }
    }

    fn expect(&mut self, token: &Token) -> Parsed<()> {
        if self.token() == token {
            self.next();
            return Ok(());
        }
        self.fail(format!("expected {}, got {}", shown(token), shown(self.token())))
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting == NESTING {
            return self.fail(format!("expressions or tags are nested more than {NESTING} deep"));
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    // --- Statements ---

    /// Parses statements up to a tag with one of these names, which is not consumed; without names, up to the end of the
    /// template.
    fn statements(&mut self, ends: &[&str]) -> Parsed<Vec<Statement>> {
        let mut all = Vec::new();
        loop {
            match self.token().clone() {
                Token::Data(text) => {
                    self.next();
                    all.push(Statement::Data(text));
                }
                Token::PrintBegin => {
                    let line = self.line();
                    self.next();
                    all.push(Statement::Print(line, self.tuple(true)?));
                    self.expect(&Token::PrintEnd)?;
                }
                Token::TagBegin => {
                    self.next();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(all);
                    }
                    let statement = self.nested(|parser| parser.statement(ends))?;
                    all.extend(statement);
                    self.expect(&Token::TagEnd)?;
                }
                Token::End if ends.is_empty() => return Ok(all),
                Token::End => return self.fail(format!("the template ends before {}", list(ends))),
                other => return self.fail(format!("unexpected {}", shown(&other))),
            }
        }
    }

    /// Parses the body of a tag; also returns the name of the tag that ends it, which is consumed.
    fn body(&mut self, ends: &[&str]) -> Parsed<(Vec<Statement>, Arc<str>)> {
        self.skip_op(":");
        self.expect(&Token::TagEnd)?;
        let body = self.statements(ends)?;
        Ok((body, self.expect_name()?))
    }

    /// Parses the body of a tag that `break` cannot leave.
    fn closed_body(&mut self, end: &str) -> Parsed<Vec<Statement>> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(&[end]);
        self.loops = loops;
        Ok(body?.0)
    }

    fn statement(&mut self, ends: &[&str]) -> Parsed<Option<Statement>> {
        let line = self.line();
        let Token::Name(tag) = self.token().clone() else { return self.fail("tag name expected") };
        self.next();
        Ok(Some(match &*tag {
            "for" => self.parse_for(line)?,
            "if" => self.parse_if(line)?,
            "set" => self.parse_set(line)?,
            "with" => self.parse_with(line)?,
            "macro" => self.parse_macro()?,
            "call" => self.parse_call_block(line)?,
            "filter" => {
                let first = self.filter_call()?;
                let filters = self.filters_after(vec![first])?;
                Statement::Filter(line, filters, self.body(&["endfilter"])?.0)
            }
            "print" => return self.parse_print(line),
            "generation" => Statement::Generation(self.closed_body("endgeneration")?),
            "block" => self.parse_block()?,
            "break" | "continue" if self.loops == 0 => return self.fail(format!("'{tag}' outside of a loop")),
            "break" => Statement::Break,
            "continue" => Statement::Continue,
            name if UNSUPPORTED.contains(&name) => {
                return Err(unsupported(&format!("the tag `{name}`")).at(line));
            }
            name if ends.is_empty() => return self.fail(format!("unknown tag '{name}'")),
            name => return self.fail(format!("unknown tag '{name}' before {}", list(ends))),
        }))
    }

    fn parse_for(&mut self, line: usize) -> Parsed<Statement> {
        self.around += 1;
        let parsed = self.parse_inner_for(line);
        self.around -= 1;
        parsed
    }

    fn parse_inner_for(&mut self, line: usize) -> Parsed<Statement> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.fail(format!("expected 'in', got {}", shown(self.token())));
        }
        let over = self.tuple(false)?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let body = self.body(&["endfor", "else"]);
        self.loops -= 1;
        let (body, end) = body?;
        let otherwise = if &*end == "else" { self.body(&["endfor"])?.0 } else { Vec::new() };
        Ok(Statement::For(Arc::new(For { line, target, over, filter, recursive, body, otherwise })))
    }

    fn parse_if(&mut self, line: usize) -> Parsed<Statement> {
        let mut arms = Vec::new();
        let mut line = line;
        loop {
            let test = self.tuple(false)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((line, test, body));
            line = self.line();
            match &*end {
                "elif" => continue,
                "else" => return Ok(Statement::If(arms, self.body(&["endif"])?.0)),
                _ => return Ok(Statement::If(arms, Vec::new())),
            }
        }
    }

    fn parse_set(&mut self, line: usize) -> Parsed<Statement> {
        let target = self.target(true)?;
        if self.skip_op("=") {
            return Ok(Statement::Set(line, target, self.tuple(true)?));
        }
        let filters = self.filters_after(Vec::new())?;
        Ok(Statement::SetBlock(line, target, filters, self.body(&["endset"])?.0))
    }

    fn parse_with(&mut self, line: usize) -> Parsed<Statement> {
        let mut values = Vec::new();
        while *self.token() != Token::TagEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(false)?;
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Statement::With(line, values, self.body(&["endwith"])?.0))
    }

    fn parse_macro(&mut self) -> Parsed<Statement> {
        let name = self.assignable()?;
        let parameters = self.signature()?;
        Ok(Statement::Macro(self.macro_body(name, parameters, "endmacro")?))
    }

    fn parse_call_block(&mut self, line: usize) -> Parsed<Statement> {
        let parameters = if self.is_op("(") { self.signature()? } else { Vec::new() };
        let called = self.expression()?;
        let Kind::Call(_, call) = *called.kind else { return self.fail("expected call") };
        Ok(Statement::Call(line, call, self.macro_body("caller".into(), parameters, "endcall")?))
    }

    fn macro_body(
        &mut self,
        name: Arc<str>,
        parameters: Vec<(Arc<str>, Option<Expression>)>,
        end: &str,
    ) -> Parsed<Arc<Macro>> {
        if let Some((name, _)) = parameters.iter().find(|(name, _)| special(&mut Special::default(), name).is_some()) {
            return Err(unsupported(&format!("a parameter named `{name}`")).at(self.line()));
        }
        self.specials.push(Special::default());
        let body = self.closed_body(end);
        let special = self.specials.pop().unwrap_or_default();
        Ok(Arc::new(Macro { name, parameters, body: body?, special }))
    }

    fn signature(&mut self) -> Parsed<Vec<(Arc<str>, Option<Expression>)>> {
        self.expect_op("(")?;
        let mut parameters: Vec<(Arc<str>, Option<Expression>)> = Vec::new();
        while !self.is_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.assignable()?;
            if parameters.iter().any(|(other, _)| *other == name) {
                return self.fail(format!("the parameter '{name}' appears twice"));
            }
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return self.fail("non-default argument follows default argument");
            }
            parameters.push((name, default));
        }
        self.expect_op(")")?;
        Ok(parameters)
    }

    fn parse_print(&mut self, line: usize) -> Parsed<Option<Statement>> {
        if *self.token() == Token::TagEnd {
            return Ok(None);
        }
        let printed = self.expression()?;
        if self.is_op(",") {
            return Err(unsupported("the tag `print` with several values").at(line));
        }
        Ok(Some(Statement::Print(line, printed)))
    }

    fn parse_block(&mut self) -> Parsed<Statement> {
        let name = self.expect_name()?;
        if self.is_name("scoped") || self.is_name("required") {
            return Err(unsupported("a block that is scoped or required").at(self.line()));
        }
        let body = self.closed_body("endblock")?;
        self.skip_name(&name);
        Ok(Statement::Block(body))
    }

    // --- Targets ---

    fn assignable(&mut self) -> Parsed<Arc<str>> {
        let name = self.expect_name()?;
        match &*name {
            "true" | "false" | "none" | "True" | "False" | "None" => self.fail(format!("can't assign to '{name}'")),
            "loop" if self.around > 0 => self.fail("Can't assign to special loop variable in for-loop"),
            _ => Ok(name),
        }
    }

    fn target(&mut self, namespaces: bool) -> Parsed<Target> {
        let mut all = Vec::new();
        loop {
            if !all.is_empty() && self.is_tuple_end() {
                return Ok(Target::Tuple(all));
            }
            all.push(self.single_target(namespaces)?);
            if !self.skip_op(",") {
                break;
            }
        }
        match all.len() {
            1 => Ok(all.remove(0)),
            _ => Ok(Target::Tuple(all)),
        }
    }

    fn single_target(&mut self, namespaces: bool) -> Parsed<Target> {
        if self.is_op("(") {
            return self.nested(|parser| {
                parser.next();
                let inner = parser.target(namespaces)?;
                parser.expect_op(")")?;
                Ok(inner)
            });
        }
        let name = self.assignable()?;
        if namespaces && self.skip_op(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }

    // --- Expressions ---

    fn is_tuple_end(&self) -> bool {
        matches!(self.token(), Token::PrintEnd | Token::TagEnd) || self.is_op(")")
    }

    /// Parses one expression, or several separated by commas.
    fn tuple(&mut self, conditions: bool) -> Parsed<Expression> {
        let (mut all, is_tuple) = self.items(conditions)?;
        match all.pop() {
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                all.push(last);
                Expression::new(Kind::Tuple(all))
            }
            None => self.fail(format!("Expected an expression, got {}", shown(self.token()))),
        }
    }

    fn items(&mut self, conditions: bool) -> Parsed<(Vec<Expression>, bool)> {
        let mut all = Vec::new();
        let mut is_tuple = false;
        while !self.is_tuple_end() {
            all.push(if conditions { self.expression()? } else { self.nested(Self::or)? });
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        Ok((all, is_tuple))
    }

    fn expression(&mut self) -> Parsed<Expression> {
        self.nested(Self::condition)
    }

    fn condition(&mut self) -> Parsed<Expression> {
        let mut then = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.expression()?) } else { None };
            then = Expression::new(Kind::Condition(test, then, otherwise))?;
        }
        Ok(then)
    }

    fn or(&mut self) -> Parsed<Expression> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            left = Expression::new(Kind::Or(left, self.and()?))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed<Expression> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            left = Expression::new(Kind::And(left, self.not()?))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Parsed<Expression> {
        match self.skip_name("not") {
            true => Expression::new(Kind::Not(self.nested(Self::not)?)),
            false => self.compare(),
        }
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let found = match self.token() {
            Token::Op("==") => Comparison::Equal,
            Token::Op("!=") => Comparison::Unequal,
            Token::Op("<") => Comparison::Less,
            Token::Op("<=") => Comparison::LessOrEqual,
            Token::Op(">") => Comparison::Greater,
            Token::Op(">=") => Comparison::GreaterOrEqual,
            Token::Name(name) if **name == *"in" => Comparison::In,
            Token::Name(name) if **name == *"not" && *self.after() == Token::Name("in".into()) => {
                self.next();
                Comparison::NotIn
            }
            _ => return None,
        };
        self.next();
        Some(found)
    }

    fn compare(&mut self) -> Parsed<Expression> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison() {
            rest.push((comparison, self.sum()?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Expression::new(Kind::Compare(first, rest)),
        }
    }

    fn operator(&mut self, operators: &[(&str, Operator)]) -> Option<Operator> {
        let (_, operator) = operators.iter().find(|(text, _)| self.is_op(text))?;
        self.next();
        Some(*operator)
    }

    fn sum(&mut self) -> Parsed<Expression> {
        let mut left = self.concat()?;
        while let Some(operator) = self.operator(&[("+", Operator::Add), ("-", Operator::Subtract)]) {
            left = Expression::new(Kind::Arithmetic(operator, left, self.concat()?))?;
        }
        Ok(left)
    }

    fn concat(&mut self) -> Parsed<Expression> {
        let mut all = vec![self.product()?];
        while self.skip_op("~") {
            all.push(self.product()?);
        }
        match all.len() {
            1 => Ok(all.remove(0)),
            _ => Expression::new(Kind::Concat(all)),
        }
    }

    fn product(&mut self) -> Parsed<Expression> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        let mut left = self.power()?;
        while let Some(operator) = self.operator(&operators) {
            left = Expression::new(Kind::Arithmetic(operator, left, self.power()?))?;
        }
        Ok(left)
    }

    fn power(&mut self) -> Parsed<Expression> {
        let mut left = self.unary(true)?;
        while self.skip_op("**") {
            left = Expression::new(Kind::Arithmetic(Operator::Power, left, self.unary(true)?))?;
        }
        Ok(left)
    }

    fn unary(&mut self, filters: bool) -> Parsed<Expression> {
        let node = if self.skip_op("-") {
            Expression::new(Kind::Negative(self.nested(|parser| parser.unary(false))?))?
        } else if self.skip_op("+") {
            Expression::new(Kind::Positive(self.nested(|parser| parser.unary(false))?))?
        } else {
            self.primary()?
        };
        let node = self.postfix(node)?;
        if filters { self.filtered(node) } else { Ok(node) }
    }

    fn primary(&mut self) -> Parsed<Expression> {
        match self.token().clone() {
            Token::Name(name) => {
                self.next();
                self.named(name)
            }
            Token::Text(first) => {
                self.next();
                let mut text = String::from(&*first);
                while let Token::Text(more) = self.token().clone() {
                    self.next();
                    text.push_str(&more);
                }
                constant(Constant::Text(text.into()))
            }
            Token::Int(value) => {
                self.next();
                constant(Constant::Int(value))
            }
            Token::Float(value) => {
                self.next();
                constant(Constant::Float(value))
            }
            Token::Op("(") => {
                self.next();
                let (mut all, is_tuple) = self.items(true)?;
                self.expect_op(")")?;
                match all.pop() {
                    Some(only) if !is_tuple => Ok(only),
                    last => {
                        all.extend(last);
                        Expression::new(Kind::Tuple(all))
                    }
                }
            }
            Token::Op("[") => self.list(),
            Token::Op("{") => self.dict(),
            other => self.fail(format!("unexpected {}", shown(&other))),
        }
    }

    fn named(&mut self, name: Arc<str>) -> Parsed<Expression> {
        match &*name {
            "true" | "True" => constant(Constant::Bool(true)),
            "false" | "False" => constant(Constant::Bool(false)),
            "none" | "None" => constant(Constant::None),
            "self" | "super" => Err(unsupported(&format!("the name `{name}`")).at(self.line())),
            _ => {
                for around in &mut self.specials {
                    if let Some(flag) = special(around, &name) {
                        *flag = true;
                    }
                }
                Expression::new(Kind::Name(name))
            }
        }
    }

    fn list(&mut self) -> Parsed<Expression> {
        self.next();
        let mut all = Vec::new();
        while !self.is_op("]") {
            all.push(self.expression()?);
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op("]")?;
        Expression::new(Kind::List(all))
    }

    fn dict(&mut self) -> Parsed<Expression> {
        self.next();
        let mut pairs = Vec::new();
        while !self.is_op("}") {
            let key = self.expression()?;
            self.expect_op(":")?;
            pairs.push((key, self.expression()?));
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op("}")?;
        Expression::new(Kind::Dict(pairs))
    }

    fn postfix(&mut self, node: Expression) -> Parsed<Expression> {
        let mut node = node;
        loop {
            node = match self.token() {
                Token::Op(".") => self.attribute(node)?,
                Token::Op("[") => self.subscript(node)?,
                Token::Op("(") => self.call(node)?,
                _ => return Ok(node),
            };
        }
    }

    fn filtered(&mut self, node: Expression) -> Parsed<Expression> {
        let mut node = node;
        loop {
            node = if self.is_op("|") {
                self.next();
                let call = self.filter_call()?;
                Expression::new(Kind::Filter(node, call))?
            } else if self.is_name("is") {
                self.test(node)?
            } else if self.is_op("(") {
                self.call(node)?
            } else {
                return Ok(node);
            };
        }
    }

    fn attribute(&mut self, of: Expression) -> Parsed<Expression> {
        self.next();
        match self.next() {
            Token::Name(name) => Expression::new(Kind::Attribute(of, name)),
            Token::Int(index) => Expression::new(Kind::Item(of, constant(Constant::Int(index))?)),
            _ => self.fail("expected name or number"),
        }
    }

    fn subscript(&mut self, of: Expression) -> Parsed<Expression> {
        self.next();
        let from = if self.is_op(":") { None } else { Some(self.expression()?) };
        let node = if self.skip_op(":") {
            let to = if self.is_op(":") { None } else { self.bound()? };
            let step = if self.skip_op(":") { self.bound()? } else { None };
            Expression::new(Kind::Slice(of, [from, to, step]))?
        } else {
            match from {
                Some(index) => Expression::new(Kind::Item(of, index))?,
                None => return self.fail("expected subscript expression"),
            }
        };
        if self.is_op(",") {
            return Err(unsupported("a subscript with commas").at(self.line()));
        }
        self.expect_op("]")?;
        Ok(node)
    }

    fn bound(&mut self) -> Parsed<Option<Expression>> {
        if self.is_op("]") || self.is_op(",") { Ok(None) } else { self.expression().map(Some) }
    }

    fn call(&mut self, function: Expression) -> Parsed<Expression> {
        let line = self.line();
        let arguments = self.arguments()?;
        Expression::new(Kind::Call(line, CallExpression { function, arguments }))
    }

    fn arguments(&mut self) -> Parsed<Arguments> {
        self.expect_op("(")?;
        let mut all = Arguments::default();
        while !self.is_op(")") {
            let ordered = all.more_named.is_none();
            if self.skip_op("*") {
                self.ensure(ordered && all.more.is_none())?;
                all.more = Some(self.expression()?);
            } else if self.skip_op("**") {
                self.ensure(ordered)?;
                all.more_named = Some(self.expression()?);
            } else if matches!(self.token(), Token::Name(_)) && *self.after() == Token::Op("=") {
                self.ensure(ordered)?;
                let name = self.expect_name()?;
                self.next();
                if all.named.iter().any(|(other, _)| *other == name) {
                    return self.fail(format!("keyword argument repeated: {name}"));
                }
                all.named.push((name, self.expression()?));
            } else {
                self.ensure(ordered && all.more.is_none() && all.named.is_empty())?;
                all.positional.push(self.expression()?);
            }
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op(")")?;
        Ok(all)
    }

    fn ensure(&self, holds: bool) -> Parsed<()> {
        if holds { Ok(()) } else { self.fail("invalid syntax for function call expression") }
    }

    fn dotted_name(&mut self) -> Parsed<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }

    fn filter_call(&mut self) -> Parsed<FilterCall> {
        let name = self.dotted_name()?;
        if !filter_names::is_known(&name) {
            return self.fail(format!("no filter named '{name}'"));
        }
        let arguments = if self.is_op("(") { self.arguments()? } else { Arguments::default() };
        Ok(FilterCall { name, arguments })
    }

    fn filters_after(&mut self, before: Vec<FilterCall>) -> Parsed<Vec<FilterCall>> {
        let mut all = before;
        while self.skip_op("|") {
            all.push(self.filter_call()?);
        }
        Ok(all)
    }

    fn test(&mut self, of: Expression) -> Parsed<Expression> {
        self.next();
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        if !predicates::is_known(&name) {
            return self.fail(format!("no test named '{name}'"));
        }
        let arguments = match self.token() {
            Token::Op("(") => self.arguments()?,
            Token::Name(name) if matches!(&**name, "else" | "or" | "and") => Arguments::default(),
            Token::Name(name) if **name == *"is" => return self.fail("You cannot chain multiple tests with is"),
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{") => {
                let only = self.nested(|parser| {
                    let node = parser.primary()?;
                    parser.postfix(node)
                })?;
                Arguments { positional: vec![only], ..Arguments::default() }
            }
            _ => Arguments::default(),
        };
        let test = Expression::new(Kind::Test(of, FilterCall { name, arguments }))?;
        if negated { Expression::new(Kind::Not(test)) } else { Ok(test) }
    }
}

fn constant(value: Constant) -> Parsed<Expression> {
    Expression::new(Kind::Constant(value))
}

fn special<'s>(all: &'s mut Special, name: &str) -> Option<&'s mut bool> {
    match name {
        "varargs" => Some(&mut all.varargs),
        "kwargs" => Some(&mut all.kwargs),
        "caller" => Some(&mut all.caller),
        _ => None,
    }
}

fn list(tags: &[&str]) -> String {
    tags.iter().map(|tag| format!("'{tag}'")).collect::<Vec<_>>().join(" or ")
}

fn shown(token: &Token) -> String {
    match token {
        Token::Data(_) => "text".to_owned(),
        Token::PrintBegin => "'{{'".to_owned(),
        Token::PrintEnd => "'}}'".to_owned(),
        Token::TagBegin => "'{%'".to_owned(),
        Token::TagEnd => "'%}'".to_owned(),
        Token::Name(name) => format!("'{name}'"),
        Token::Text(_) => "a string".to_owned(),
        Token::Int(value) => format!("'{value}'"),
        Token::Float(value) => format!("'{value}'"),
        Token::Op(op) => format!("'{op}'"),
        Token::End => "the end of the template".to_owned(),
    }
}
