/** One line of tokens. Drawn once for each way it can look, however often the list around it is. */

import { Component } from 'preact'

import type { Colouring } from '../state/place'
import { tokenClass } from './colour'
import type { Columns } from './columns'
import { piece } from './lines'

interface Props {
  columns: Columns
  start: number
  end: number
  colouring: Colouring
  scale: number
  /** The pinned token where it is in this line; -1 elsewhere. */
  pinned: number
  /** More to say of a token, as a class. */
  mark?: (index: number) => string
}

export class TokenLine extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    return (Object.keys(next) as (keyof Props)[]).some((name) => this.props[name] !== next[name])
  }

  override render({ columns, start, end, colouring, scale, pinned, mark }: Props) {
    const spans = []
    for (let index = start; index < end; index++) {
      const extra = `${index === pinned ? ' pinned' : ''}${mark ? mark(index) : ''}`
      spans.push(
        <span key={index} class={tokenClass(columns, index, colouring, scale) + extra} data-token={index}>
          {piece(columns, index)}
        </span>,
      )
    }
    return <div class="line">{spans}</div>
  }
}
