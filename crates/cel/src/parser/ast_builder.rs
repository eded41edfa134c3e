//! Nodes that macros create.
//! In: arguments of a macro call. Out: nodes, counted and limited like those of the text.
//! Guarantees: a node created here has the offset of the macro call; a copy has new ids.

use crate::ast::{ACCUMULATOR, Call, Expr, Id, Item, Kind, Literal};

use super::{Parser, Stop};

/// Creates the nodes of a macro, all with the offset of the macro call.
pub(crate) struct AstBuilder<'a, 'p> {
    parser: &'a mut Parser<'p>,
    call: Id,
}

impl<'a, 'p> AstBuilder<'a, 'p> {
    pub(super) fn new(parser: &'a mut Parser<'p>, call: Id) -> Self {
        Self { parser, call }
    }

    pub(crate) fn builder(&mut self, kind: Kind) -> Result<Expr, Stop> {
        let at = self.parser.place(self.call);
        let id = self.parser.id(at);
        self.parser.node(id, kind)
    }

    pub(crate) fn call(&mut self, function: &str, args: Vec<Expr>) -> Result<Expr, Stop> {
        self.builder(Kind::Call(Call {
            function: function.into(),
            target: None,
            args,
        }))
    }

    pub(crate) fn ident(&mut self, name: &str) -> Result<Expr, Stop> {
        self.builder(Kind::Ident(name.into()))
    }

    pub(crate) fn accumulator(&mut self) -> Result<Expr, Stop> {
        self.ident(ACCUMULATOR)
    }

    pub(crate) fn literal(&mut self, literal: Literal) -> Result<Expr, Stop> {
        self.builder(Kind::Literal(literal))
    }

    pub(crate) fn list(&mut self, values: Vec<Expr>) -> Result<Expr, Stop> {
        self.builder(Kind::List(
            values
                .into_iter()
                .map(|value| Item {
                    value,
                    optional: false,
                })
                .collect(),
        ))
    }

    /// A copy of the tree with new ids.
    pub(crate) fn copy(&mut self, expr: &Expr) -> Result<Expr, Stop> {
        let mut nodes = 0;
        expr.walk(&mut |_| nodes += 1);
        self.parser.reserve(nodes)?;
        let mut copy = expr.clone();
        self.renumber(&mut copy);
        Ok(copy)
    }

    fn renumber(&mut self, expr: &mut Expr) {
        let at = self.parser.place(expr.id);
        let depth = self.parser.depths[expr.id as usize];
        expr.id = self.parser.id(at);
        self.parser.depths[expr.id as usize] = depth;
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Message(message) => message
                .fields
                .iter_mut()
                .for_each(|field| self.renumber(&mut field.value)),
            Kind::Select(select) => self.renumber(&mut select.operand),
            Kind::Call(call) => call
                .target
                .as_deref_mut()
                .into_iter()
                .chain(&mut call.args)
                .for_each(|e| self.renumber(e)),
            Kind::List(items) => items
                .iter_mut()
                .for_each(|item| self.renumber(&mut item.value)),
            Kind::Map(entries) => entries.iter_mut().for_each(|entry| {
                self.renumber(&mut entry.key);
                self.renumber(&mut entry.value);
            }),
            Kind::Comprehension(fold) => {
                let fold = &mut **fold;
                let children = [
                    &mut fold.range,
                    &mut fold.init,
                    &mut fold.condition,
                    &mut fold.step,
                    &mut fold.result,
                ];
                children.into_iter().for_each(|e| self.renumber(e));
            }
        }
    }

    /// Reports the errors of an argument; returns a placeholder so that parsing can continue.
    pub(crate) fn refuse(
        &mut self,
        argument: &Expr,
        problem: impl Into<String>,
    ) -> Result<Expr, Stop> {
        let at = self.parser.place(argument.id);
        self.parser.report(Some(at), problem);
        self.literal(Literal::Null)
    }
}
